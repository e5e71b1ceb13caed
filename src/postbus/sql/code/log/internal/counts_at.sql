-- The numbers of messages in the segments of a topic and a lane that have these sequences. Other sequences have no row.
create or replace function postbus.counts_at(storage_id integer, topic_id bigint, lane integer, sequences bigint[])
returns table (sequence bigint, count integer)
language plpgsql stable
set enable_seqscan = off as $$
declare
    _epoch bigint;
begin
    for _epoch in select distinct one.sequence >> 43 from unnest(sequences) as one (sequence) loop
        begin
            return query execute format('select s.sequence, s.count from postbus.%I s
                                          where s.topic_id = $1 and s.sequence = any ($2) and s.lane = $3',
                                        postbus.partition_name(storage_id, _epoch::integer))
                using topic_id, sequences, lane;
        exception when undefined_table then
            null;       -- the partition was dropped, or never existed
        end;
    end loop;
end $$;

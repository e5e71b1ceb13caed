-- How many messages the segments have that are at these positions, of a topic and a lane; there is no row for others.
create or replace function postbus.counts_at(storage_id integer, topic_id bigint, lane integer, positions bigint[])
returns table ("position" bigint, count integer)
language plpgsql stable
set enable_seqscan = off as $$
declare
    _epoch bigint;
begin
    for _epoch in select distinct one.position >> 43 from unnest(positions) as one ("position") loop
        begin
            return query execute format('select s.position, s.count from postbus.%I s
                                          where s.topic_id = $1 and s.position = any ($2) and s.lane = $3',
                                        postbus.leaf_name(storage_id, _epoch::integer))
                using topic_id, positions, lane;
        exception when undefined_table then
            null;       -- it was dropped, or never was there
        end;
    end loop;
end $$;

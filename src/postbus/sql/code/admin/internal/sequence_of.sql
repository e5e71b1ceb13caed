-- The sequence of the segment that has a message. Searches the partitions of its topic, by the number that follows from the id, and
-- first the partition that was written to when that number was handed out. Null if the segment is gone.
create or replace function postbus.sequence_of(topic postbus.topic, id bigint) returns bigint
language plpgsql stable
set enable_seqscan = off as $$
declare
    _number    bigint := sequence_of.id >> 10;
    _partition integer;
    _found     bigint;
begin
    for _partition in
        select l.epoch from postbus.log_partition l where l.storage_id = topic.storage_id
         order by l.after_number < _number desc, abs(_number - l.after_number), l.epoch desc
    loop
        begin
            execute format('select s.sequence from postbus.%I s where s.topic_id = $1 and s.sequence = $2 and s.count > $3',
                           postbus.partition_name(topic.storage_id, _partition))
               into _found
              using topic.id, (_partition::bigint << 43) + _number, sequence_of.id & 1023;
        exception when undefined_table then
            null;           -- dropped just now
        end;
        exit when _found is not null;
    end loop;
    return _found;
end $$;

-- Where the segment of a message is: looked for in the leaves of its topic, by the number that its id tells, and first in the one that was
-- written to when that number was handed out. Null if it is gone.
create or replace function postbus.position_of(topic postbus.topic, id bigint) returns bigint
language plpgsql stable
set enable_seqscan = off as $$
declare
    _number bigint := position_of.id >> 10;
    _leaf   integer;
    _found  bigint;
begin
    for _leaf in
        select l.epoch from postbus.log_leaf l where l.storage_id = topic.storage_id
         order by l.after_number < _number desc, abs(_number - l.after_number), l.epoch desc
    loop
        begin
            execute format('select s.position from postbus.%I s where s.topic_id = $1 and s.position = $2 and s.count > $3',
                           postbus.leaf_name(topic.storage_id, _leaf))
               into _found
              using topic.id, (_leaf::bigint << 43) + _number, position_of.id & 1023;
        exception when undefined_table then
            null;           -- dropped just now
        end;
        exit when _found is not null;
    end loop;
    return _found;
end $$;

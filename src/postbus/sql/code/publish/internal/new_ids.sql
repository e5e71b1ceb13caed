-- Ids for messages of a queue, in rising order.
--
-- Writes: message_id, which gives out 1024 at a time.
create or replace function postbus.new_ids(count integer) returns bigint[]
language plpgsql as $$
declare
    _ids   bigint[] := '{}';
    _first bigint;
begin
    for _given in 0 .. count - 1 by 1024 loop
        _first := nextval('postbus.message_id');
        _ids := _ids || array(select _first + i from generate_series(0, least(count - _given, 1024) - 1) as i);
    end loop;
    return _ids;
end $$;

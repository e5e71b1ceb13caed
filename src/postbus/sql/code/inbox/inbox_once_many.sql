-- inbox_once for many messages: an answer for each, in the given order. If an id is given twice, the first one counts.
--
-- Locks are taken in the order of the ids, so that two callers do not wait for each other.
--
-- Writes: inbox.  Locks: the inbox rows of the messages.
create or replace function postbus.inbox_once_many(
    consumer    text,
    message_ids text[],
    keep        interval default '720 hours'
) returns boolean[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _first boolean[] := array_fill(false, array[coalesce(cardinality(message_ids), 0)]);
    _position bigint;
begin
    for _position in
        select one.position from unnest(message_ids) with ordinality as one (id, position) order by one.id collate "C", one.position
    loop
        _first[_position] := postbus.inbox_once(consumer, message_ids[_position], keep);
    end loop;
    return _first;
end $$;

-- inbox_once for many messages: an answer for each, in the order in which they are given. Of an id that is given twice the
-- first one counts.
--
-- They are taken in the order of their ids, so that two callers do not wait for each other.
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
    _place bigint;
begin
    for _place in
        select one.place from unnest(message_ids) with ordinality as one (id, place) order by one.id collate "C", one.place
    loop
        _first[_place] := postbus.inbox_once(consumer, message_ids[_place], keep);
    end loop;
    return _first;
end $$;

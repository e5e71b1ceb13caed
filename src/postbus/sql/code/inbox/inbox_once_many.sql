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
    _n     bigint;
begin
    for _n in
        select one.n from unnest(message_ids) with ordinality as one (id, n) order by one.id collate "C", one.n
    loop
        _first[_n] := postbus.inbox_once(consumer, message_ids[_n], keep);
    end loop;
    return _first;
end $$;

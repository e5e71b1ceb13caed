-- Removes the rows of the ledger that a later one has replaced. Returns how many. They go some minutes later and many
-- at a time, so that there are always far more live rows than dead ones. Rows by which a lane was taken stay for a
-- day: they are what whoever held it before runs into, even with an old snapshot.
--
-- Writes: cursor.
create or replace function postbus.fold_cursors(storage_id integer, as_of timestamptz) returns bigint
language plpgsql as $$
declare
    _count bigint;
begin
    with last as materialized (
        select newest.subscription_id, newest.lane, newest.number
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id
          join postbus.current_cursor newest on newest.subscription_id = s.id
         cross join lateral (select c.at from postbus.cursor c
                              where c.subscription_id = newest.subscription_id and c.lane = newest.lane
                                and (c.fenced_at > as_of - interval '1 day') is not true
                              order by c.number limit 1) as oldest
         where t.storage_id = fold_cursors.storage_id and oldest.at < as_of - interval '6 minutes'
    )
    delete from postbus.cursor c using last
     where c.subscription_id = last.subscription_id and c.lane = last.lane and c.number < last.number
       and c.at < as_of - interval '5 minutes' and (c.fenced_at > as_of - interval '1 day') is not true;
    get diagnostics _count = row_count;
    return _count;
end $$;

-- Returns what happened to groups, for the caller to log. Each event goes to one caller.
--
-- Writes: group_event.  Locks: its rows (skip locked).
create or replace function postbus.take_group_events()
returns table (name text, topic text, group_name text, fields jsonb)
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    with taken as (
        delete from postbus.group_event e
         where e.id in (select one.id from postbus.group_event one order by one.id limit 1000 for update skip locked)
        returning e.id, e.name, e.topic, e.group_name, e.fields
    )
    select taken.name, taken.topic, taken.group_name, taken.fields from taken order by taken.id
$$;

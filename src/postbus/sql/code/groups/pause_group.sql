-- Pauses a group: published messages wait for it. Pausing twice changes nothing.
--
-- Writes: see set_group_state.
create or replace function postbus.pause_group(topic text, group_name text) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.set_group_state(topic, group_name, 'PAUSED')
$$;

-- Resumes a paused group.
--
-- Writes: see set_group_state.
create or replace function postbus.resume_group(topic text, group_name text) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.set_group_state(topic, group_name, 'ACTIVE')
$$;

-- Resumes a cancelled catch-up from its position, with the messages that are still retained. Returns its subscription.
--
-- Writes: see set_catch_up.
create or replace function postbus.resume_catch_up(topic text, group_name text) returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.set_catch_up(topic, group_name, true)
$$;

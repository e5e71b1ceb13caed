-- Tells that a process has stopped.
--
-- Writes: worker.
create or replace function postbus.sign_off(name text) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    delete from postbus.worker known where known.name = sign_off.name
$$;

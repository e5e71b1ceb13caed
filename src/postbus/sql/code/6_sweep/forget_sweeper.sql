-- Tells that a process no longer sweeps.
--
-- Writes: sweeper.
create or replace function postbus.forget_sweeper(name text) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    delete from postbus.sweeper known where known.name = forget_sweeper.name
$$;

-- Tells that a process sweeps, which consumes nothing: a server, or one that does nothing else. Those that consume send `heartbeat`.
--
-- Writes: sweeper.
create or replace function postbus.note_sweeper(name text, host text, pid integer) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    insert into postbus.sweeper as known (name, host, pid) values (name, host, pid)
    on conflict on constraint sweeper_pkey do update set seen_at = clock_timestamp()
$$;

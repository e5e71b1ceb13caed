-- Tells that a process is alive and which topics it consumes.
--
-- Writes: worker.
create or replace function postbus.heartbeat(name text, host text, pid integer, topics text[]) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    insert into postbus.worker as known (name, host, pid, topics) values (name, host, pid, topics)
    on conflict on constraint worker_pkey do update set seen_at = clock_timestamp(), topics = excluded.topics
$$;

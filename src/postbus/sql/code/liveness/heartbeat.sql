-- Notes that a process is alive, and which topics it consumes. With its first heartbeat a process may give a secret, a random
-- number. From then on only callers that give the secret can call in its name.
--
-- Writes: worker.
create or replace function postbus.heartbeat(name text, host text, pid integer, topics text[], secret uuid default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_label(name);
    insert into postbus.worker as known (name, host, pid, topics, secret)
    values (heartbeat.name, postbus.in_line(heartbeat.host, 300), heartbeat.pid,
            array(select left(one.topic, 200) from unnest(heartbeat.topics) with ordinality as one (topic, n) where one.n <= 10000 order by one.n),
            heartbeat.secret)
    on conflict on constraint worker_pkey do update set seen_at = clock_timestamp(), topics = excluded.topics
       where known.secret is null or known.secret = excluded.secret;
    if not found then
        perform postbus.refuse_process(name);
    end if;
end $$;

-- Notes that a process sweeps and consumes nothing. Processes that consume call `heartbeat`, which explains the secret.
--
-- Writes: sweeper.
create or replace function postbus.note_sweeper(name text, host text, pid integer, secret uuid default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_label(name);
    insert into postbus.sweeper as known (name, host, pid, secret)
    values (note_sweeper.name, postbus.in_line(note_sweeper.host, 300), note_sweeper.pid, note_sweeper.secret)
    on conflict on constraint sweeper_pkey do update set seen_at = clock_timestamp()
       where known.secret is null or known.secret = excluded.secret;
    if not found then
        perform postbus.refuse_process(name);
    end if;
end $$;

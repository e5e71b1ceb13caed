-- Notes that a process has stopped. The caller gives the secret of its heartbeats.
--
-- Writes: worker.
create or replace function postbus.sign_off(name text, secret uuid default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_process(name, secret);
    delete from postbus.worker known where known.name = sign_off.name;
end $$;

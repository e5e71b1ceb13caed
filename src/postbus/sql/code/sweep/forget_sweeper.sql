-- Notes that a process no longer sweeps. The caller gives the same secret as to note_sweeper.
--
-- Writes: sweeper.
create or replace function postbus.forget_sweeper(name text, secret uuid default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    delete from postbus.sweeper known
     where known.name = forget_sweeper.name and (known.secret is null or known.secret = forget_sweeper.secret);
    if not found and exists (select from postbus.sweeper known where known.name = forget_sweeper.name) then
        perform postbus.refuse_process(name);
    end if;
end $$;

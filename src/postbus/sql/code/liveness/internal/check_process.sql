-- Refuses a call in the name of a process that has given a secret with its heartbeats, if the call does not give that secret. A
-- process that has given none, or is not known, cannot be protected.
create or replace function postbus.check_process(name text, secret uuid) returns void
language plpgsql as $$
begin
    if exists (select from postbus.worker w
                where w.name = check_process.name and w.secret is not null and (w.secret = check_process.secret) is not true) then
        perform postbus.refuse_process(name);
    end if;
end $$;

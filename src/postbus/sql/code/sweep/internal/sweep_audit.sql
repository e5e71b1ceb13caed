-- Removes entries of the audit log that are older than audit_retention, the oldest first. Nothing else removes entries, and callers
-- cannot choose the time. Returns the number of removed entries.
--
-- Writes: audit_entry.
create or replace function postbus.sweep_audit(max_count integer) returns bigint
language plpgsql as $$
declare
    _keeps interval := (select s.audit_retention from postbus.sweep_setting s);
    _gone  bigint;
begin
    delete from postbus.audit_entry e
     where e.id = any (array(select old.id from postbus.audit_entry old where old.at <= clock_timestamp() - _keeps
                              order by old.at limit max_count));
    get diagnostics _gone = row_count;
    return _gone;
end $$;

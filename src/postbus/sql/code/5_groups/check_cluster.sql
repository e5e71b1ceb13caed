-- Refuses a database that was restored from a dump: its cursors belong to the server that was dumped.
--
-- Every way in calls this, pops each time. A session stays with its server, so that it remembers which one that is.
create or replace function postbus.check_cluster() returns void
language plpgsql as $$
declare
    _ours postbus.cluster;
    _here bigint;
begin
    select * into _ours from postbus.cluster c;
    if _ours.table_oid = 'postbus.cluster'::regclass and current_setting('postbus.cluster', true) = coalesce(_ours.identifier::text, '-') then
        return;
    end if;
    begin
        _here := (select system_identifier from pg_control_system());
    exception when insufficient_privilege then
        null;       -- the table's own oid tells nevertheless
    end;
    if _ours.table_oid <> 'postbus.cluster'::regclass or _ours.identifier <> _here then
        perform postbus.refuse('PB507', 'this database was restored from a dump: its cursors belong to the server that was dumped',
            'run: postbus rebase');
    end if;
    perform set_config('postbus.cluster', coalesce(_ours.identifier::text, '-'), false);
end $$;

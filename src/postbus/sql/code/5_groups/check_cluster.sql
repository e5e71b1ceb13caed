-- Refuses a database that was restored from a dump: its cursors belong to the server that was dumped.
create or replace function postbus.check_cluster() returns void
language plpgsql as $$
declare
    _ours postbus.cluster;
    _here bigint;
begin
    select * into _ours from postbus.cluster c;
    begin
        _here := (select system_identifier from pg_control_system());
    exception when insufficient_privilege then
        null;       -- the table's own oid tells nevertheless
    end;
    if _ours.table_oid <> 'postbus.cluster'::regclass or _ours.identifier <> _here then
        perform postbus.refuse('PB507', 'this database was restored from a dump: its cursors belong to the server that was dumped',
            'run: postbus rebase');
    end if;
end $$;

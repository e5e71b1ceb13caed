-- Refuses a database that was restored into another server than the one its cursors belong to.
create or replace function postbus.check_cluster() returns void
language plpgsql as $$
declare
    _ours  bigint := (select c.identifier from postbus.cluster c);
    _here  bigint;
begin
    begin
        _here := (select system_identifier from pg_control_system());
    exception when insufficient_privilege then
        return;
    end;
    if _ours <> _here then
        perform postbus.refuse('PB507', 'this database was restored from a dump of another server, where its cursors belong',
            'run: postbus rebase');
    end if;
end $$;

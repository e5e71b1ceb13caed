-- Refuses a database that was restored from a dump: its cursors belong to the server that was dumped.
--
-- Every entry point of the log calls this; pops call it each time. A session stays with its server, so it remembers the server's
-- identifier, and the oid of the table cluster. The hottest entry points (read_log, advance) only check that the session remembers.
create or replace function postbus.check_cluster() returns void
language plpgsql as $$
declare
    _ours  postbus.cluster;
    _here  bigint;
    _known text;
begin
    select * into _ours from postbus.cluster c;
    _known := format('%s/%s', coalesce(_ours.identifier::text, '-'), 'postbus.cluster'::regclass::oid);
    if _ours.table_oid = 'postbus.cluster'::regclass and current_setting('postbus.cluster', true) = _known then
        return;
    end if;
    begin
        _here := (select system_identifier from pg_control_system());
    exception when insufficient_privilege then
        null;       -- the table's own oid shows it nevertheless
    end;
    if _ours.table_oid <> 'postbus.cluster'::regclass or _ours.identifier <> _here then
        perform postbus.refuse('PB507', 'this database was restored from a dump: its cursors belong to the server that was dumped',
            'run: postbus rebase; for a copy that runs beside the original: postbus rebase --as-copy');
    end if;
    perform set_config('postbus.cluster', _known, false);
end $$;

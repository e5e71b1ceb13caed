-- Removes messages that all groups are done with and whose retention is over, as consuming processes do. Returns the number of
-- removed messages of the log, plus the rows of finished messages of queues.
--
-- Writes: see drop_partitions, sweep and note_action.  Locks: an advisory lock for each storage; leaves out storages that another
-- sweep has locked.
create or replace function postbus_outbox.cleanup_completed_outbox_messages() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _gone    bigint := (select s.finished_rows from postbus.sweep() as s);
    _storage integer;
    _swept   record;
begin
    for _storage in select s.id from postbus.log_storage s order by s.id loop
        continue when not pg_try_advisory_xact_lock(hashtext('postbus.sweep_log'), _storage);
        loop
            select * into _swept from postbus.drop_partitions(_storage, pg_snapshot_xmin(pg_current_snapshot()), clock_timestamp());
            exit when _swept.dropped = '{}' and _swept.thinned = 0;
            _gone := _gone + _swept.messages;
        end loop;
    end loop;
    if _gone > 0 then
        perform postbus.note_action('sweep.cleanup', affected => _gone);
    end if;
    return _gone;
end $$;

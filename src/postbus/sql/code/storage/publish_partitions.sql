-- Publishes the partitions of a new log storage to all sessions: see published_epoch. This takes two transactions: one adds the
-- standby partition, which makes all sessions look up the storages again; the next lets them use what they know. Returns whether
-- there is more to do at once. The sweep calls it, too.
--
-- A session that is just looking up the storages would not look again. It has the table locked and is active, so the function waits
-- for such sessions for a moment, and otherwise leaves the rest for later. Looking up takes less than a millisecond: after seconds
-- no session is still doing it.
--
-- Writes: see add_standby.  Locks: an advisory lock for the transaction, if it is free.
create or replace function postbus.publish_partitions(storage_id integer) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _now      timestamptz := clock_timestamp();
    _storage  postbus.log_storage;
    _sequence regclass := to_regclass(format('postbus.%I', format('log_epoch_%s', storage_id)));
    _standby  regclass;
    _looking  text[];         -- transactions that may be looking up the storages
begin
    if _sequence is null or pg_sequence_last_value(_sequence) is not null
       or not pg_try_advisory_xact_lock(hashtext('postbus.log_storage'))            -- topics are being created, or another session does this
       or pg_sequence_last_value(_sequence) is not null then                    -- or has just done it
        return false;
    end if;
    if not exists (select from postbus.log_partition l
                    where l.storage_id = publish_partitions.storage_id and l.epoch = 1 and l.closed_txid is null) then
        return false;       -- it is not new: see append_segment
    end if;
    _standby := to_regclass(format('postbus.%I', postbus.partition_name(storage_id, 2)));
    if _standby is not null then
        if exists (select from pg_locks l where l.pid = pg_backend_pid() and l.relation = _standby and l.mode = 'AccessExclusiveLock') then
            return true;                    -- this transaction has added it, and has not told other sessions yet
        end if;
        perform setval(_sequence, 1);       -- the session that had the lock told all others before it gave the lock up
        return false;
    end if;
    select * into _storage from postbus.log_storage s where s.id = storage_id;
    for _n in 0 .. 20 loop
        if _n > 0 then
            perform pg_sleep(0.001);
        end if;
        _looking := array(
            select l.virtualtransaction
              from pg_locks l
              join pg_stat_activity a on a.pid = l.pid and a.datname = current_database() and a.state is distinct from 'idle in transaction'
             where l.pid <> pg_backend_pid() and (_n = 0 or l.virtualtransaction = any (_looking))
               and l.relation in ('postbus.segment'::regclass, 'postbus.segment_shared'::regclass, 'postbus.receipt'::regclass));
        if _looking = '{}' or exists (select from postbus.log_partition l where l.storage_id = publish_partitions.storage_id
                                         and l.epoch = 1 and l.opened_at < _now - interval '5 seconds') then
            perform postbus.add_standby(_storage, 2);
            return true;
        end if;
    end loop;
    return false;
end $$;

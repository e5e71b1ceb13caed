-- Makes a storage that is new known to all sessions: see epoch_sequence. In two transactions: one adds the spare leaf, which makes
-- all of them look again, and the next lets them use what they know. Returns whether there is more to do at once. Sweeps do it, too.
--
-- A session that is just looking up the storages would not look again. It has the table locked and is at work, so those who are
-- are waited for, for a moment, or left for later. Looking takes less than a millisecond: after seconds nobody is still at it.
--
-- Writes: see add_spare.  Locks: an advisory lock for the transaction, if it is free.
create or replace function postbus.make_known(storage_id integer) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _now      timestamptz := clock_timestamp();
    _storage  postbus.storage;
    _sequence regclass := to_regclass(format('postbus.%I', format('log_epoch_%s', storage_id)));
    _spare    regclass;
    _looking  text[];
begin
    if _sequence is null or pg_sequence_last_value(_sequence) is not null
       or not pg_try_advisory_xact_lock(hashtext('postbus.storage'))            -- topics are being created, or somebody else does this
       or pg_sequence_last_value(_sequence) is not null then                    -- or has just done it
        return false;
    end if;
    if not exists (select from postbus.log_leaf l where l.storage_id = make_known.storage_id and l.epoch = 1 and l.closed_txid is null) then
        return false;       -- it is not new: see append_segment
    end if;
    _spare := to_regclass(format('postbus.%I', postbus.leaf_name(storage_id, 2)));
    if _spare is not null then
        if exists (select from pg_locks l where l.pid = pg_backend_pid() and l.relation = _spare and l.mode = 'AccessExclusiveLock') then
            return true;                    -- this transaction has added it, and has told nobody yet
        end if;
        perform setval(_sequence, 1);       -- whoever had the lock before has told everybody, before he let go of it
        return false;
    end if;
    select * into _storage from postbus.storage s where s.id = storage_id;
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
        if _looking = '{}' or exists (select from postbus.log_leaf l where l.storage_id = make_known.storage_id
                                         and l.epoch = 1 and l.opened_at < _now - interval '5 seconds') then
            perform postbus.add_spare(_storage, 2);
            return true;
        end if;
    end loop;
    return false;
end $$;

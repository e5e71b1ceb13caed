-- Makes a storage that is new known to all sessions: see epoch_sequence. In two transactions: one adds the spare leaf and makes
-- all of them look again, the next lets them use what they know. Returns whether there is more to do. Sweeps do it, too.
--
-- Writes: log_leaf, new tables.  Locks: an advisory lock for the transaction, if it is free.
create or replace function postbus.make_known(storage_id integer) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _sequence regclass := to_regclass(format('postbus.%I', format('log_epoch_%s', storage_id)));
    _is_told  boolean;              -- null: nobody has begun
begin
    if _sequence is null or pg_sequence_last_value(_sequence) is not null then
        return false;
    end if;
    if not pg_try_advisory_xact_lock(hashtext('postbus.storage')) then      -- topics are being created, or somebody else does this
        return true;
    end if;
    select l.xmin is distinct from pg_current_xact_id_if_assigned()::xid into _is_told
      from postbus.log_leaf l where l.storage_id = make_known.storage_id and l.epoch = 2;
    if _is_told then
        perform setval(_sequence, 1);       -- whoever had the lock before has told everybody, before he let go of it
        return false;
    elsif not _is_told then                 -- by this transaction, which tells at its end
        return true;
    end if;
    perform postbus.add_leaf(storage_id, 2);
    -- Changes nothing but that all sessions look up again which storages there are.
    execute format('grant select on postbus.%I, postbus.receipt to current_user',
                   case when exists (select from postbus.storage s where s.id = make_known.storage_id and s.topic_id is null)
                        then 'segment_shared' else 'segment' end);
    return true;
end $$;

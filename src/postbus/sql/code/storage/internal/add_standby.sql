-- Adds the standby partition after the current one. The sweep adds it long before it is needed, and adds one more before the
-- standby becomes the current one: a session that looks up the partitions at the very moment when one is added may not know it
-- until the next is added. The first standby partition of a log storage does the same for the storage itself: see
-- publish_partitions. While topics are being created, the function does nothing, and the sweep calls it again later.
--
-- Writes: log_partition, new tables.  Locks: an advisory lock for the transaction, if it is free.
create or replace function postbus.add_standby(storage postbus.log_storage, epoch integer) returns void
language plpgsql as $$
begin
    if not pg_try_advisory_xact_lock(hashtext('postbus.log_storage')) then
        return;
    end if;
    perform postbus.add_partition(storage.id, epoch);
    if epoch = 2 then       -- changes nothing, but makes all sessions look up the storages again
        execute format('grant select on postbus.%I, postbus.receipt to current_user',
                       case when storage.topic_id is null then 'segment_shared' else 'segment' end);
    end if;
end $$;

-- Adds the leaf after the one that is written to. The sweep does so long before it is needed, and adds one more when it begins
-- it: a session that looks up the leaves at the very moment when one is added may not know it until it hears of the next.
-- With the first spare of a storage the same is done for the storage itself: see make_known. While topics are created it is left
-- for later.
--
-- Writes: log_leaf, new tables.  Locks: an advisory lock for the transaction, if it is free.
create or replace function postbus.add_spare(storage postbus.storage, epoch integer) returns void
language plpgsql as $$
begin
    if not pg_try_advisory_xact_lock(hashtext('postbus.storage')) then
        return;
    end if;
    perform postbus.add_leaf(storage.id, epoch);
    if epoch = 2 then       -- Changes nothing but that all sessions look up again which storages there are.
        execute format('grant select on postbus.%I, postbus.receipt to current_user',
                       case when storage.topic_id is null then 'segment_shared' else 'segment' end);
    end if;
end $$;

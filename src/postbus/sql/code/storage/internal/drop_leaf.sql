-- Drops a leaf, and records what the groups of these topics lose by it. Returns false, having changed nothing, if others use the
-- leaf for longer than 50 milliseconds.
--
-- Writes: log_leaf, leaf_topic, loss, subscription, tables.  Locks: the storage's tables, in access exclusive mode.
create or replace function postbus.drop_leaf(leaf postbus.log_leaf, topic_ids bigint[], as_of timestamptz) returns boolean
language plpgsql as $$
begin
    -- Before the lock, since it may take its time.
    perform postbus.record_loss(leaf, topic_ids, as_of);
    perform set_config('lock_timeout', '50ms', true);
    execute format('lock table only postbus.%I in access exclusive mode', format('segment_%s', leaf.storage_id));
    execute format('lock table only postbus.%I in access exclusive mode', format('receipt_%s', leaf.storage_id));
    execute format('drop table postbus.%I', postbus.leaf_name(leaf.storage_id, leaf.epoch));
    execute format('drop table postbus.%I', format('receipt_%s_%s', leaf.storage_id, leaf.epoch));
    delete from postbus.leaf_topic part where part.storage_id = leaf.storage_id and part.epoch = leaf.epoch;
    delete from postbus.log_leaf l where l.storage_id = leaf.storage_id and l.epoch = leaf.epoch;
    return true;
exception when lock_not_available then
    return false;
end $$;

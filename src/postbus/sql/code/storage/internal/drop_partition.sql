-- Drops a partition, and records what the groups of these topics lose by that. Returns false, having changed nothing, if other
-- sessions use the partition for longer than 50 milliseconds.
--
-- Writes: log_partition, partition_topic, loss, subscription, tables.  Locks: the storage's tables, in access exclusive mode.
create or replace function postbus.drop_partition(partition postbus.log_partition, topic_ids bigint[], as_of timestamptz) returns boolean
language plpgsql as $$
begin
    -- Before the lock, since it may take long.
    perform postbus.record_loss(partition, topic_ids, as_of);
    perform set_config('lock_timeout', '50ms', true);
    execute format('lock table only postbus.%I in access exclusive mode', format('segment_%s', partition.storage_id));
    execute format('lock table only postbus.%I in access exclusive mode', format('receipt_%s', partition.storage_id));
    execute format('drop table postbus.%I', postbus.partition_name(partition.storage_id, partition.epoch));
    execute format('drop table postbus.%I', format('receipt_%s_%s', partition.storage_id, partition.epoch));
    delete from postbus.partition_topic part where part.storage_id = partition.storage_id and part.epoch = partition.epoch;
    delete from postbus.log_partition l where l.storage_id = partition.storage_id and l.epoch = partition.epoch;
    return true;
exception when lock_not_available then
    return false;
end $$;

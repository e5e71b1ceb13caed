-- Keeps a partition from being dropped until the end of the transaction. Returns whether it is still there.
--
-- Locks: the partition, in access share mode.
create or replace function postbus.lock_partition(storage_id integer, epoch integer) returns boolean
language plpgsql as $$
begin
    execute format('lock table postbus.%I in access share mode', postbus.partition_name(storage_id, epoch));
    return true;
exception when undefined_table then
    return false;
end $$;

-- The sequence whose last value is the epoch that a log storage writes to. The sequence has no value while the storage is new:
-- sessions that looked up the storages just when it was added may not know it. Until publish_partitions has made all sessions look
-- again, the storage is written to and read by the name of its first partition.
create or replace function postbus.epoch_sequence(storage_id integer) returns regclass
language sql stable parallel safe
return ('postbus.log_epoch_' || storage_id::text)::regclass;

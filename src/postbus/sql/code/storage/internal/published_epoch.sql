-- The epoch that a log storage writes to, or null while the storage is new: see publish_partitions.
--
-- Sessions that looked up the storages just when one was added may not know the new one. Until publish_partitions has made all
-- sessions look again, the sequence of the storage's epochs has no value, and writers and readers use the name of the storage's
-- first partition.
create or replace function postbus.published_epoch(storage_id integer) returns bigint
language sql volatile
return pg_sequence_last_value(postbus.epoch_sequence(storage_id));

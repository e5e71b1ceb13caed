-- How long a partition of a log storage is written to: the storage's period, or 1/64 of the age of the oldest partition if that is
-- longer. Otherwise a group that keeps old messages for days would let hundreds of partitions gather, and each read locks all of
-- them.
create or replace function postbus.partition_period(storage postbus.log_storage, as_of timestamptz) returns interval
language sql stable as $$
    select greatest(storage.period, (as_of - (select min(l.closed_at) from postbus.log_partition l where l.storage_id = storage.id)) / 64)
$$;

-- How long a leaf of a storage is written to: the storage's period, or 1/64 of the age of the oldest leaf if that is longer. A
-- group that keeps old messages for days would let hundreds of leaves gather, and each read locks all of them.
create or replace function postbus.leaf_period(storage postbus.storage, as_of timestamptz) returns interval
language sql stable as $$
    select greatest(storage.period, (as_of - (select min(l.closed_at) from postbus.log_leaf l where l.storage_id = storage.id)) / 64)
$$;

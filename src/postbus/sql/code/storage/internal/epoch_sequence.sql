-- The sequence whose last value is the epoch that a storage writes to. It has none while the storage is new: that there is one
-- more is what sessions may not know then, which looked up the storages just when it was added. So it is written to and read by
-- the name of its leaf, the first, until make_known has made all of them look again.
create or replace function postbus.epoch_sequence(storage_id integer) returns regclass
language sql stable parallel safe
return ('postbus.log_epoch_' || storage_id::text)::regclass;

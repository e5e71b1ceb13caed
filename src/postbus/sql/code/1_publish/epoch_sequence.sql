-- The sequence whose last value is the epoch that a storage writes to.
create or replace function postbus.epoch_sequence(storage_id integer) returns regclass
language sql stable parallel safe
return ('postbus.log_epoch_' || storage_id::text)::regclass;

-- The sequence whose last value is the epoch that a log storage writes to: see published_epoch.
create or replace function postbus.epoch_sequence(storage_id integer) returns regclass
language sql stable parallel safe
return ('postbus.log_epoch_' || storage_id::text)::regclass;

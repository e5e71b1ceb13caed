-- The epoch that a log storage writes to.
create or replace function postbus.epoch(storage_id integer) returns bigint
language sql volatile
return coalesce(pg_sequence_last_value(postbus.epoch_sequence(storage_id)), 1);

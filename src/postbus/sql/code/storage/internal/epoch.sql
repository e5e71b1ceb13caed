-- The epoch that a log storage writes to. A new storage has one, too, though it is not published.
create or replace function postbus.epoch(storage_id integer) returns bigint
language sql volatile
return coalesce(postbus.published_epoch(storage_id), 1);

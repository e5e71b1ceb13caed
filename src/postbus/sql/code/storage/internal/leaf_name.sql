-- The name of the table that holds a storage's segments of one epoch, without its schema.
create or replace function postbus.leaf_name(storage_id integer, epoch integer) returns text
language sql immutable parallel safe
return 'segment_' || storage_id::text || '_' || epoch::text;

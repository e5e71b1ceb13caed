-- The name of the table that holds the segments of one epoch of a log storage, without its schema.
create or replace function postbus.partition_name(storage_id integer, epoch integer) returns text
language sql immutable parallel safe
return 'segment_' || storage_id::text || '_' || epoch::text;

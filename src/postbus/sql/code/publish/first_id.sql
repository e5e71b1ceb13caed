-- The id of the first message of a segment; those of the others follow. It is the segment's number, which is the position
-- without its epoch, times 1024.
create or replace function postbus.first_id("position" bigint) returns bigint
language sql immutable parallel safe
return (first_id.position & 8796093022207) * 1024;

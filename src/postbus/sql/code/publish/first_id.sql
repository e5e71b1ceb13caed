-- The id of the first message of a segment: the segment's number, which is its sequence without the epoch, times 1024. The ids of
-- the other messages follow.
create or replace function postbus.first_id(sequence bigint) returns bigint
language sql immutable parallel safe
return (first_id.sequence & 8796093022207) * 1024;

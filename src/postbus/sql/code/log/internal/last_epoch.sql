-- The last leaf that a cursor names.
create or replace function postbus.last_epoch(cursor postbus.log_cursor) returns bigint
language sql immutable parallel safe
return greatest(((cursor).seen).position, ((cursor).target).position, (cursor).done_position) >> 43;

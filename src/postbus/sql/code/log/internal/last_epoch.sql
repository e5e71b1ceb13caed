-- The last partition that a cursor names.
create or replace function postbus.last_epoch(cursor postbus.log_cursor) returns bigint
language sql immutable parallel safe
return greatest(((cursor).seen).sequence, ((cursor).target).sequence, (cursor).done_sequence) >> 43;

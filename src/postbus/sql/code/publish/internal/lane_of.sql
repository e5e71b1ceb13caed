-- The lane of a key. Hash partitioning relies on the same function, so the lane stays the same on all versions.
create or replace function postbus.lane_of(key text, lanes integer) returns integer
language sql immutable parallel safe
return (hashtextextended(key, 0) & 9223372036854775807) % lanes;

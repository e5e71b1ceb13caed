-- How long ago a process may have been heard of at most to count as alive. Processes send a heartbeat every 10 seconds at least, so
-- one that was killed is no longer counted after 25 seconds, and one that lost two heartbeats still is.
create or replace function postbus.alive_for() returns interval
language sql immutable
return interval '25 seconds';

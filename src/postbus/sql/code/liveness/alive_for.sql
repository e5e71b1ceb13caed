-- How old the last heartbeat of a process may be for the process to count as alive. Processes send a heartbeat every 10 seconds at
-- least. So a killed process counts for at most 25 seconds, and a process that lost two heartbeats still counts.
create or replace function postbus.alive_for() returns interval
language sql immutable
return interval '25 seconds';

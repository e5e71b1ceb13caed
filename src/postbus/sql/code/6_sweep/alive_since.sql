-- Since when a process must have been heard of to count as alive. Processes send a heartbeat every 10 seconds at least, so
-- one that was killed is no longer counted after 25 seconds, and one that lost two heartbeats still is.
create or replace function postbus.alive_since(as_of timestamptz) returns timestamptz
language sql immutable as $$
    select as_of - interval '25 seconds'
$$;

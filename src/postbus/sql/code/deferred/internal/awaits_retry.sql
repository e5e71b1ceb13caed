-- Whether a message has failed and its delay is not over. A group with on_failure = 'pass' handles later messages of the key
-- meanwhile.
create or replace function postbus.awaits_retry(message postbus.deferred, as_of timestamptz) returns boolean
language sql immutable as $$
    select message.attempts > 0 and message.token is null and not message.parked and message.due_at > as_of
$$;

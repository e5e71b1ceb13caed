-- Whether a message has failed, and waits for its delay to be over. A group that lets others pass goes on with its key meanwhile.
create or replace function postbus.is_put_off(message postbus.retrying, as_of timestamptz) returns boolean
language sql immutable as $$
    select message.attempts > 0 and message.token is null and not message.parked and message.due_at > as_of
$$;

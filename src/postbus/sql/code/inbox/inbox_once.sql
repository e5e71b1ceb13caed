-- Whether a consumer gets this message for the first time within the window. If so, that is noted in the caller's transaction:
-- effects that commit with it happen once, however often the message is delivered.
--
-- Waits while another transaction has the same message of the same consumer in hand. If that transaction commits, the answer is
-- false; if it rolls back, it is true. In REPEATABLE READ and SERIALIZABLE, a caller that has waited for a commit gets a
-- serialization failure (40001) and has to try again, as with other writes.
--
-- Writes: inbox.  Locks: the inbox row of the message.
create or replace function postbus.inbox_once(
    consumer   text,
    message_id text,
    keep       interval default '720 hours'
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _now timestamptz := clock_timestamp();
begin
    perform postbus.check_inbox(consumer, message_id, keep);
    insert into postbus.inbox (consumer, message_id, done_at, expires_at)
    values (inbox_once.consumer, inbox_once.message_id, _now, _now + keep)
    on conflict on constraint inbox_pkey do nothing;
    if found then
        return true;
    end if;
    -- A record past its window does not count. A record that the sweep, or inbox_forget, removes just now was there a moment ago:
    -- the answer is that of a moment ago. Nothing is locked unless a record has expired.
    update postbus.inbox i
       set done_at = _now, expires_at = _now + keep
     where i.consumer = inbox_once.consumer and i.message_id = inbox_once.message_id and i.expires_at <= _now;
    return found;
end $$;

-- Removes messages from the pull buffer of a subscription that were published before a time and never popped, because the group
-- must not get them from there. Messages behind a failed one stay, and the remaining messages of each key go on. Returns the number
-- of removed messages.
--
-- Writes: deferred, receipt.  Locks: the rows that it removes.
create or replace function postbus.clear_buffer(subscription_id bigint, before timestamptz default 'infinity') returns bigint
language plpgsql as $$
declare
    _gone tid[];
begin
    _gone := array(
        select r.ctid from postbus.deferred r
         where r.subscription_id = clear_buffer.subscription_id and r.buffered and r.attempts = 0 and r.published_at < before
           and not exists (select from postbus.deferred failed
                            where failed.subscription_id = r.subscription_id and failed.lane = r.lane and failed.key = r.key and failed.attempts > 0)
           for update of r);
    perform postbus.note_left_behind(postbus.subscribed_topic(subscription_id), _gone, 'SKIPPED');
    delete from postbus.deferred r where r.ctid = any (_gone);
    -- All keys, not only those of removed messages: another session may just have parked messages behind these.
    perform postbus.unpark_all(subscription_id);
    return cardinality(_gone);
end $$;

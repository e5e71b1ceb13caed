-- Removes messages from the pull buffer of a subscription that were published before a time and never popped, because the group is
-- not to get them from there. Messages behind one that failed stay, and the rest of each key goes on. Returns how many.
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
    -- Not only of those that are gone: somebody may just have put others behind them.
    perform postbus.unpark_all(subscription_id);
    return cardinality(_gone);
end $$;

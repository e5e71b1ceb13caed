-- Removes what waits on the shelf of a subscription to be popped for the first time, of messages that were published before a
-- time: the group is not to get it from there. What waits behind a message that failed stays, and what is left of a key goes on.
-- Returns how many.
--
-- Writes: retrying, receipt.  Locks: the rows that it removes.
create or replace function postbus.clear_shelf(subscription_id bigint, before timestamptz default 'infinity') returns bigint
language plpgsql as $$
declare
    _gone tid[];
begin
    _gone := array(
        select r.ctid from postbus.retrying r
         where r.subscription_id = clear_shelf.subscription_id and r.shelved and r.attempts = 0 and r.published_at < before
           and not exists (select from postbus.retrying failed
                            where failed.subscription_id = r.subscription_id and failed.lane = r.lane and failed.key = r.key and failed.attempts > 0)
           for update of r);
    perform postbus.leave_behind(postbus.subscribed_topic(subscription_id), _gone, 'SKIPPED');
    delete from postbus.retrying r where r.ctid = any (_gone);
    -- Not only of those that are gone: somebody may just have put others behind them.
    perform postbus.unpark_all(subscription_id);
    return cardinality(_gone);
end $$;

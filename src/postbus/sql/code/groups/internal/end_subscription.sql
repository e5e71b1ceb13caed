-- Ends a subscription: no process reads for it any more. What it has settled stays known: see keep_history.
--
-- Writes: subscription, lane, cursor, stretch, receipt, deferred, settled_ahead, group_worker, catch_up.  Locks: the advisory lock
-- of its pull buffer: see fill_buffer.
create or replace function postbus.end_subscription(subscription_id bigint, catch_up_status text default null) returns void
language plpgsql as $$
declare
    _topic postbus.topic := postbus.subscribed_topic(subscription_id);
begin
    -- A session that fills its pull buffer would leave messages behind: this waits for it, and keeps others out until the commit.
    perform pg_advisory_xact_lock(hashtext('postbus.buffer'), hashtext(subscription_id::text));
    update postbus.catch_up c
       set status = catch_up_status, ended_at = coalesce(c.ended_at, clock_timestamp()),
           processed = coalesce((select sum(l.passed) from postbus.current_cursor l
                                  where l.subscription_id = end_subscription.subscription_id), c.processed)
     where c.subscription_id = end_subscription.subscription_id;
    perform postbus.keep_history(_topic, subscription_id);
    update postbus.subscription s set state = 'CANCELLED', state_changed_at = clock_timestamp()
     where s.id = end_subscription.subscription_id and s.state <> 'CANCELLED';
    delete from postbus.lane l where l.subscription_id = end_subscription.subscription_id;
    delete from postbus.cursor c where c.subscription_id = end_subscription.subscription_id;
    delete from postbus.deferred r where r.subscription_id = end_subscription.subscription_id;
    delete from postbus.group_worker g where g.subscription_id = end_subscription.subscription_id;
end $$;

-- Keeps receipts of messages that wait at subscriptions which end, or are set past them: they were not settled, although they are in a stretch.
-- The rows themselves are the caller's to remove.
--
-- Writes: receipt.
create or replace function postbus.leave_behind(topic postbus.topic, messages tid[], outcome text) returns void
language sql as $$
    select postbus.keep_receipt(topic, r.subscription_id, r.lane, array_agg(r.id), array_agg(r.position), array_agg(leave_behind.outcome),
                                array_agg(r.attempts), array_agg(r.last_error), array_agg(r.member), array_agg(r.stretch), clock_timestamp())
      from postbus.retrying r where r.ctid = any (messages) group by r.subscription_id, r.lane
$$;

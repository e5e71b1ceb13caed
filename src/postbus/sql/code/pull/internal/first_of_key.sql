-- The first message of a key in the pull buffers of subscriptions, locked, if a pop may take it now: it is due, no message of the
-- key is in hand, and its lane is not one of `held`, the lanes that workers hold. Messages that wait for a retry do not count if
-- the group lets others pass.
--
-- Locks: rows of deferred (skip locked).
create or replace function postbus.first_of_key(
    subscription_ids bigint[],
    topic            postbus.topic,
    key              text,
    held             integer[],
    passes           boolean,
    as_of            timestamptz
) returns tid[]
language plpgsql as $$
begin
    return array(
        select r.ctid
          from unnest(subscription_ids) as part (id)
         cross join lateral (
            select r.ctid from postbus.deferred r
             where r.subscription_id = part.id and r.lane = postbus.lane_of(first_of_key.key, topic.lanes)
               and r.key = first_of_key.key and not (passes and postbus.awaits_retry(r, as_of))
             order by r.sequence, r.id limit 1) as first         -- if it is locked, the next one must not be taken, either
          join postbus.deferred r on r.ctid = first.ctid
         where not r.parked and r.due_at <= as_of and r.lane <> all (held)
           and not exists (
               select from postbus.deferred other
                where other.subscription_id = r.subscription_id and other.lane = r.lane and other.key = r.key
                  and other.sequence <= postbus.last_in_hand(r.subscription_id, r.lane, r.key)
                  and other.token is not null and other.due_at > as_of)
           for update of r skip locked);
end $$;

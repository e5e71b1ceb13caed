-- Claims due deferred messages of lanes for the lanes' holder. Each claim counts an attempt, which begins now. The holder extends
-- the leases by extend_deferred.
--
-- Messages that were in hand when their process ended are suspects: see return_expired. They are claimed only with is_alone, one
-- at a time, by a caller that handles nothing else until the suspect is settled. A message that was alone in hand is charged the
-- attempt, and waits for the topic's backoff; others are not charged. Without is_alone, the first suspect that is due is returned
-- last, but is not claimed (alone is null). If is_alone is null, suspects are claimed by a caller that does handle other messages.
--
-- A pop may have had several messages of one key in hand: the first of them is claimed.
--
-- Writes: deferred.  Locks: lane rows, for share.
create or replace function postbus.claim_deferred_as_of(
    tokens    uuid[],
    max_count integer,
    as_of     timestamptz default clock_timestamp(),
    is_alone  boolean default false
) returns setof postbus.deferred
language plpgsql as $$
begin
    with owned as (
        select l.subscription_id, l.lane, postbus.subscribed_topic(l.subscription_id) as topic
          from postbus.lane l where l.token = any (claim_deferred_as_of.tokens) for share
    )
    update postbus.deferred r
       set suspected = true, token = null, member = null, alone = null, attempts = case when r.alone then r.attempts else r.attempts - 1 end,
           due_at = case when r.alone then as_of + postbus.backoff(owned.topic, r.attempts) else as_of + postbus.suspect_delay(r.outlasted) end
      from owned
     where r.subscription_id = owned.subscription_id and r.lane = owned.lane and (r.alone is not null or r.token is not null) and not r.parked
       and r.due_at <= as_of;
    return query
    with owned as (
        select l.subscription_id, l.lane, postbus.subscribed_topic(l.subscription_id) as topic
          from postbus.lane l where l.token = any (claim_deferred_as_of.tokens) for share
    ), due as (
        select r.subscription_id, r.lane, r.id, owned.topic
          from owned
         cross join lateral (select * from postbus.deferred r
                              where r.subscription_id = owned.subscription_id and r.lane = owned.lane and not r.parked and r.due_at <= as_of
                                and r.suspected = coalesce(is_alone, true)
                                and (not r.buffered and not coalesce(is_alone, true) or r.key is null or not exists (
                                        select from postbus.deferred before
                                         where before.subscription_id = r.subscription_id and before.lane = r.lane and before.key = r.key
                                           and (before.sequence, before.id) < (r.sequence, r.id)))
                              order by r.due_at limit max_count) as r
         limit max_count
    )
    update postbus.deferred r
       set attempts = r.attempts + 1, token = null, member = null, alone = coalesce(is_alone, false), due_at = as_of + (due.topic).lease
      from due
     where r.subscription_id = due.subscription_id and r.lane = due.lane and r.id = due.id
       and r.due_at <= as_of       -- a pop may have taken the message before it knew of the worker
    returning r.*;
    if not is_alone then
        return query
        select r.* from postbus.lane l
          join postbus.deferred r on r.subscription_id = l.subscription_id and r.lane = l.lane
         where l.token = any (claim_deferred_as_of.tokens) and not r.parked and r.due_at <= as_of and r.suspected and r.alone is null
         limit 1;
    end if;
end $$;

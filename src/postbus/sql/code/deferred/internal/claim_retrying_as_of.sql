-- Takes messages of lanes that are due to be tried again by their group. Counts the attempt: it begins now. Whoever holds the
-- lanes prolongs the lease of what it has in hand, by prolong_retrying.
--
-- Messages that were in hand when their process ended are suspected: see return_expired. They are taken with is_alone only, one at
-- a time, by a caller that handles nothing else until it is settled. One that was alone already is charged the attempt, and waits
-- for the topic's backoff; others are not charged. Without is_alone, the first suspect that is due comes last, and is not taken:
-- it is not in hand (alone is null). If is_alone is null, they are taken by a caller that does handle other messages.
--
-- Of those that a pop had in hand, several may be of one key: the first of them comes.
--
-- Writes: retrying.  Locks: lane rows, for share.
create or replace function postbus.claim_retrying_as_of(
    tokens    uuid[],
    max_count integer,
    as_of     timestamptz default clock_timestamp(),
    is_alone  boolean default false
) returns setof postbus.retrying
language plpgsql as $$
begin
    with held as (
        select l.subscription_id, l.lane, postbus.subscribed_topic(l.subscription_id) as topic
          from postbus.lane l where l.token = any (claim_retrying_as_of.tokens) for share
    )
    update postbus.retrying r
       set suspected = true, token = null, member = null, alone = null, attempts = case when r.alone then r.attempts else r.attempts - 1 end,
           due_at = case when r.alone then as_of + postbus.backoff(held.topic, r.attempts) else as_of + postbus.behind_others(r.outlasted) end
      from held
     where r.subscription_id = held.subscription_id and r.lane = held.lane and (r.alone is not null or r.token is not null) and not r.parked
       and r.due_at <= as_of;
    return query
    with held as (
        select l.subscription_id, l.lane, postbus.subscribed_topic(l.subscription_id) as topic
          from postbus.lane l where l.token = any (claim_retrying_as_of.tokens) for share
    ), due as (
        select r.subscription_id, r.lane, r.id, held.topic
          from held
         cross join lateral (select * from postbus.retrying r
                              where r.subscription_id = held.subscription_id and r.lane = held.lane and not r.parked and r.due_at <= as_of
                                and r.suspected = coalesce(is_alone, true)
                                and (not r.shelved and not coalesce(is_alone, true) or r.key is null or not exists (
                                        select from postbus.retrying before
                                         where before.subscription_id = r.subscription_id and before.lane = r.lane and before.key = r.key
                                           and (before.position, before.id) < (r.position, r.id)))
                              order by r.due_at limit max_count) as r
         limit max_count
    )
    update postbus.retrying r
       set attempts = r.attempts + 1, token = null, member = null, alone = coalesce(is_alone, false), due_at = as_of + (due.topic).lease
      from due
     where r.subscription_id = due.subscription_id and r.lane = due.lane and r.id = due.id
       and r.due_at <= as_of       -- a pop may have taken it before it knew of the worker
    returning r.*;
    if not is_alone then
        return query
        select r.* from postbus.lane l
          join postbus.retrying r on r.subscription_id = l.subscription_id and r.lane = l.lane
         where l.token = any (claim_retrying_as_of.tokens) and not r.parked and r.due_at <= as_of and r.suspected and r.alone is null
         limit 1;
    end if;
end $$;

-- Takes messages of lanes that are due to be tried again by their group. Counts the attempt: it begins now.
-- Whoever holds the lane tries again after the topic's lease if nothing is settled until then; from the second time on
-- after a while more, of which each has its own, so that what was in hand with a deadly message is not always with it.
-- Of those that a pop had in hand, several may be of one key: the first of them comes.
--
-- Writes: retrying.  Locks: lane rows, for share.
create or replace function postbus.claim_retrying(
    tokens    uuid[],
    max_count integer,
    as_of     timestamptz default clock_timestamp()
) returns setof postbus.retrying
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return query
    with held as (
        select l.subscription_id, l.lane, postbus.subscribed_topic(l.subscription_id) as topic
          from postbus.lane l where l.token = any (tokens) for share
    ), due as (
        select r.subscription_id, r.lane, r.id, held.topic
          from held
         cross join lateral (select * from postbus.retrying r
                              where r.subscription_id = held.subscription_id and r.lane = held.lane and not r.parked and r.due_at <= as_of
                                and (not r.shelved or r.key is null or not exists (
                                        select from postbus.retrying before
                                         where before.subscription_id = r.subscription_id and before.lane = r.lane and before.key = r.key
                                           and (before.position, before.id) < (r.position, r.id)))
                              order by r.due_at limit max_count) as r
         limit max_count
    )
    update postbus.retrying r
       set attempts = r.attempts + 1, token = null, member = null,
           due_at = as_of + (due.topic).lease + case when r.attempts >= 2 then postbus.backoff(due.topic, r.attempts) else interval '0' end
      from due
     where r.subscription_id = due.subscription_id and r.lane = due.lane and r.id = due.id
       and r.due_at <= as_of       -- a pop may have taken it before it knew of the worker
    returning r.*;
end $$;

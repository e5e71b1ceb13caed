-- Takes messages of lanes that are due to be tried again by their group. Counts the attempt: it begins now.
-- Whoever holds the lane tries again after the topic's lease if nothing is settled until then.
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
        select r.subscription_id, r.lane, r.id, (held.topic).lease as lease
          from held
         cross join lateral (select * from postbus.retrying r
                              where r.subscription_id = held.subscription_id and r.lane = held.lane and not r.parked and r.due_at <= as_of
                              order by r.due_at limit max_count) as r
         limit max_count
    )
    update postbus.retrying r
       set attempts = r.attempts + 1, due_at = as_of + due.lease
      from due
     where r.subscription_id = due.subscription_id and r.lane = due.lane and r.id = due.id
    returning r.*;
end $$;

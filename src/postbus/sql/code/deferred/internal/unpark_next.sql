-- Makes the first parked message of each key due, if it waits behind no other any more. Its due time becomes now, even if it was
-- due before, since pops do not search for messages that were due long ago. If the group lets later messages pass, a failed message
-- does not make others wait.
--
-- The heads are found before the update reads anything: in a join with the update they would be searched for once per message in
-- the lane.
--
-- Writes: deferred.
create or replace function postbus.unpark_next(subscription_id bigint, lane integer, keys text[], as_of timestamptz) returns void
language sql as $$
    update postbus.deferred r
       set parked = false, due_at = as_of
     where r.ctid = any (array(
            select head.ctid from unnest(keys) as ended (key)
             cross join (select exists (select from postbus.subscription s
                                         where s.id = unpark_next.subscription_id and s.on_failure = 'pass') as is) as passes
             cross join lateral (select first.ctid, first.parked, first.due_at from postbus.deferred first
                                  where first.subscription_id = unpark_next.subscription_id and first.lane = unpark_next.lane
                                    and first.key = ended.key and not (passes.is and postbus.awaits_retry(first, as_of))
                                  order by first.sequence, first.id limit 1) as head
             where head.parked or head.due_at < as_of - interval '1 second'))
       and (r.token is null or r.due_at <= as_of)      -- not popped meanwhile
$$;

-- Lets the first message of each key that waits behind nothing any more be tried: it is due now, also where it was before,
-- since pops do not look at what was due long ago.
--
-- The heads are found before the update looks at anything: joined to it, they would be looked for once per message that
-- waits in the lane.
--
-- One that has failed is not waited behind if the group lets others pass.
--
-- Writes: retrying.
create or replace function postbus.unpark_retrying(subscription_id bigint, lane integer, keys text[], as_of timestamptz) returns void
language sql as $$
    update postbus.retrying r
       set parked = false, due_at = as_of
     where r.ctid = any (array(
            select head.ctid from unnest(keys) as ended (key)
             cross join (select exists (select from postbus.subscription s
                                         where s.id = unpark_retrying.subscription_id and s.on_failure = 'pass') as is) as passes
             cross join lateral (select first.ctid, first.parked, first.due_at from postbus.retrying first
                                  where first.subscription_id = unpark_retrying.subscription_id and first.lane = unpark_retrying.lane
                                    and first.key = ended.key and not (passes.is and postbus.is_put_off(first, as_of))
                                  order by first.position, first.id limit 1) as head
             where head.parked or head.due_at < as_of - interval '1 second'))
       and (r.token is null or r.due_at <= as_of)      -- not popped meanwhile
$$;

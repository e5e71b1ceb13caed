-- Whether the shelves of subscriptions have enough for a pop, about; and since when the first of it is due.
create or replace function postbus.look_at_shelf(
    subscription_ids bigint[],
    topic            postbus.topic,
    max_count        integer,
    key              text,
    since            timestamptz,
    as_of            timestamptz,
    out is_enough boolean,
    out first_due timestamptz
)
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
    with due as materialized (
        select r.* from unnest(subscription_ids) as part (id)
         cross join lateral (
            select r.subscription_id, r.lane, r.id, r.position, r.key, r.due_at from postbus.retrying r
             where look_at_shelf.key is null and r.subscription_id = part.id and not r.parked and r.due_at >= since and r.due_at <= as_of
             order by r.due_at limit max_count) as r
         union all
        select r.* from unnest(subscription_ids) as part (id)
         cross join lateral (
            select r.subscription_id, r.lane, r.id, r.position, r.key, r.due_at from postbus.retrying r
             where r.subscription_id = part.id and r.lane = postbus.lane_of(look_at_shelf.key, topic.lanes)
               and r.key = look_at_shelf.key and not r.parked and r.due_at <= as_of
             order by r.position, r.id limit 1) as r
    ), counted as (
        select d.due_at, behind.count
          from (select due.*, count(*) over () as heads from due) as d
         cross join lateral (select count(*) from (
                                select from postbus.retrying r
                                 where d.key is not null and r.subscription_id = d.subscription_id and r.lane = d.lane and r.key = d.key
                                   and (r.position, r.id) > (d.position, d.id) and r.due_at <= as_of
                                 order by r.position, r.id
                                 limit greatest(least(max_count - d.heads, 4 * (max_count - d.heads) / d.heads + 1), 0)) as one) as behind
    )
    select coalesce(sum(1 + c.count), 0) >= max_count, min(c.due_at) from counted c
$$;

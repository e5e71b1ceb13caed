-- Whether the pull buffers of subscriptions have roughly enough messages for a pop, and when the first of them was due.
create or replace function postbus.look_at_buffer(
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
            select r.subscription_id, r.lane, r.id, r.sequence, r.key, r.due_at from postbus.deferred r
             where look_at_buffer.key is null and r.subscription_id = part.id and not r.parked and r.due_at >= since and r.due_at <= as_of
             order by r.due_at limit max_count) as r
         union all
        select r.* from unnest(subscription_ids) as part (id)
         cross join lateral (
            select r.subscription_id, r.lane, r.id, r.sequence, r.key, r.due_at from postbus.deferred r
             where r.subscription_id = part.id and r.lane = postbus.lane_of(look_at_buffer.key, topic.lanes)
               and r.key = look_at_buffer.key and not r.parked and r.due_at <= as_of
             order by r.sequence, r.id limit 1) as r
    ), counted as (
        select d.due_at, behind.count
          from (select due.*, count(*) over () as heads from due) as d
         cross join lateral (select count(*) from (
                                select from postbus.deferred r
                                 where d.key is not null and r.subscription_id = d.subscription_id and r.lane = d.lane and r.key = d.key
                                   and (r.sequence, r.id) > (d.sequence, d.id) and r.due_at <= as_of
                                 order by r.sequence, r.id
                                 limit greatest(least(max_count - d.heads, 4 * (max_count - d.heads) / d.heads + 1), 0)) as one) as behind
    )
    select coalesce(sum(1 + c.count), 0) >= max_count, min(c.due_at) from counted c
$$;

-- Rows of groups that do not fit together, each with an explanation. There should never be any.
create or replace function postbus.inconsistencies()
returns table (kind text, topic text, group_name text, subscription_id bigint, explanation text)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    with known as (
        select s.id, s.topic_id, s.group_name, s.state, s.catch_up_of, t.name as topic, t.lanes, t.storage_id, u.status as catch_up,
               -- A history that was cancelled can go on, so it keeps its position.
               s.state <> 'CANCELLED' or coalesce(u.status, '') = 'CANCELLED' as may_have_lanes
          from postbus.subscription s
          left join postbus.topic t on t.id = s.topic_id
          left join postbus.catch_up u on u.subscription_id = s.id
    ), found as (
        select 'subscription' as kind, k.id, 'its topic is not there, or is a QUEUE' as explanation
          from known k where k.storage_id is null
        union all
        select 'subscription', k.id, format('it has %s of the %s lanes of its topic', has.lanes, k.lanes)
          from known k cross join lateral (select count(*) as lanes from postbus.lane l where l.subscription_id = k.id) as has
         where k.state <> 'CANCELLED' and has.lanes <> k.lanes
        union all
        select 'lane', l.subscription_id, format('lane %s belongs to a subscription that has ended or is not there', l.lane)
          from postbus.lane l left join known k on k.id = l.subscription_id where k.may_have_lanes is not true
        union all
        select 'lane', l.subscription_id, format('lane %s has no cursor', l.lane)
          from postbus.lane l
         where not exists (select from postbus.cursor c where c.subscription_id = l.subscription_id and c.lane = l.lane)
        union all
        select 'cursor', c.subscription_id, format('there are cursors of lane %s, and no such lane', c.lane)
          from postbus.cursor c
          join known k on k.id = c.subscription_id and k.state <> 'CANCELLED'     -- when one ends, a cursor may be advanced at the same moment
         where not exists (select from postbus.lane l where l.subscription_id = c.subscription_id and l.lane = c.lane)
         group by c.subscription_id, c.lane
        union all
        select 'deferred', r.subscription_id, format('%s deferred messages belong to a subscription that has ended or is not there', count(*))
          from postbus.deferred r left join known k on k.id = r.subscription_id where k.may_have_lanes is not true
         group by r.subscription_id
        union all
        select 'catch-up', u.subscription_id, 'it is in progress, and the subscription that reads it has ended or is not there'
          from postbus.catch_up u left join known k on k.id = u.subscription_id
         where u.status = 'IN_PROGRESS' and (k.id is null or k.state = 'CANCELLED')
        union all
        select 'catch-up', u.subscription_id, 'it is in progress, and the group it is for has ended or is not there'
          from postbus.catch_up u
          join known history on history.id = u.subscription_id
          left join known k on k.id = history.catch_up_of
         where u.status = 'IN_PROGRESS' and (k.id is null or k.state = 'CANCELLED')
    )
    select f.kind, k.topic, k.group_name, f.id, f.explanation
      from found f left join known k on k.id = f.id
     order by k.topic, k.group_name, f.id, f.kind, f.explanation
$$;

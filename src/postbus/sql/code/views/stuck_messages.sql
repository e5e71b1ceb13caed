-- Topics that have messages which were published longer ago than older_than, and which a live group has not settled, though it was
-- subscribed all that time. Cheap: computed from the lag and the oldest message of each group. So `messages` counts all messages
-- ahead of the group that is furthest behind, younger ones included, and its deferred messages.
create or replace function postbus.stuck_messages(older_than interval default '1 hour')
returns table (topic text, groups text[], messages bigint, oldest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select t.name, array_agg(s.group_name order by s.group_name), max(before.messages + waiting.count),
           min(least(before.oldest_at, waiting.oldest_at))
      from postbus.subscription s
      join postbus.topic t on t.id = s.topic_id
     cross join lateral postbus.group_lag(s.id) as before
     cross join lateral (select count(*) as count, min(r.published_at) as oldest_at
                           from postbus.deferred r where r.subscription_id = s.id) as waiting
     where s.state in ('ACTIVE', 'PAUSED') and s.catch_up_of is null and s.subscribed_at < clock_timestamp() - older_than
       and least(before.oldest_at, waiting.oldest_at) < clock_timestamp() - older_than
     group by t.name order by t.name
$$;

-- The topics in scopes of groups, one scope for each index of the arrays, that the caller does not know: with the group's
-- subscription, or without one if the group has not joined yet, in which case subscribe_scope has to be called. CANCELLED
-- subscriptions are left out. Only reads, for all scopes of a process, since it is called again and again.
create or replace function postbus.scope_news(
    group_names text[],
    topics      text[],
    keys        text[],
    namespaces  text[],
    tasks       text[],
    patterns    text[],
    known       bigint[]
) returns table (
    scope           integer,
    topic_name      text,
    subscription_id bigint,
    lease           interval,
    heartbeat       interval,
    max_attempts    integer,
    lanes           integer,
    is_limited      boolean
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select one.n::integer, f.topic_name, f.subscription_id, t.lease, t.heartbeat_interval, t.max_attempts, t.lanes, f.keys is not null
      from unnest(group_names, scope_news.topics, scope_news.keys, namespaces, tasks, patterns)
           with ordinality as one (group_name, topic, key, namespace, task, pattern, n)
     cross join lateral postbus.as_scope(one.group_name, one.topic, one.key, one.namespace, one.task, one.pattern) as own
     cross join lateral postbus.topics_in_scope(own) as f
      join postbus.topic t on t.id = f.topic_id
     where not exists (select from unnest(known) as k (id) where k.id = f.subscription_id)
       and (f.subscription_id is not null or own.id is not null)       -- a forgotten scope joins nothing
     order by one.n, f.topic_name
$$;

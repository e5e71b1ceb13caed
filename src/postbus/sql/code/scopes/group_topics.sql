-- The topics in a scope to which a group is subscribed and ACTIVE. Records nothing and joins nothing: see subscribe_scope.
create or replace function postbus.group_topics(
    group_name text,
    topic      text default null,
    key        text default null,
    namespace  text default null,
    task       text default null,
    pattern    text default null
) returns table (topic_name text, subscription_id bigint, keys text[])
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_scope(topic, key, namespace, task, pattern);
    return query
    select f.topic_name, f.subscription_id, f.keys
      from postbus.topics_in_scope(postbus.as_scope(group_name, topic, key, namespace, task, pattern)) as f
     where f.state = 'ACTIVE' and (group_topics.key is null or f.keys is null or group_topics.key = any (f.keys));
end $$;

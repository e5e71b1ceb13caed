-- The PUB_SUB topics in a scope, and those that its record subscribed to before they left it, each with the group's subscription,
-- or nulls. Topics on which the group was cancelled since the record are left out.
create or replace function postbus.topics_in_scope(scope postbus.scope)
returns table (topic_id bigint, topic_name text, subscription_id bigint, state text, keys text[], waits_for_queue boolean)
language plpgsql stable
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$        -- however many topics there are besides
declare
    _regex text := postbus.pattern_regex(scope.pattern);
    _ids   bigint[] := case
        when scope.topic is not null then array[postbus.topic_id(scope.topic)]
        when scope.namespace is not null then array(select t.id from postbus.topic t where t.namespace = scope.namespace)
        when scope.task is not null then array(select t.id from postbus.topic t where t.task = scope.task)
        else array(select t.id from postbus.topic t where t.name || '.' ~ _regex) end;
begin
    return query
    select t.id, t.name, s.id, s.state, s.keys, s.waits_for_queue
      from (select i.id from unnest(_ids) as i (id)
             union
            select made.topic_id from postbus.subscription made
             where made.group_name = scope.group_name and made.scope_id = scope.id) as known
      join postbus.topic t on t.id = known.id and t.storage_id is not null
      left join postbus.subscription s
        on s.topic_id = t.id and s.group_name = scope.group_name and s.catch_up_of is null and s.state <> 'CANCELLED'
     where s.id is not null
        or not exists (select from postbus.subscription ended
                        where ended.topic_id = t.id and ended.group_name = scope.group_name and ended.catch_up_of is null
                          and ended.state_changed_at >= scope.recorded_at)
     order by t.name;
end $$;

-- The PUB_SUB topics in a scope, and those that its record has subscribed to before they left it, each with the group's
-- subscription; nulls where it has none. Topics that the group was cancelled on, since the record, are left out.
create or replace function postbus.topics_in_scope(scope postbus.scope)
returns table (topic postbus.topic, subscription postbus.subscription)
language plpgsql stable as $$
declare
    _regex text := postbus.pattern_regex(scope.pattern);
begin
    return query
    select t, s
      from postbus.topic t
      left join postbus.subscription s
        on s.group_name = scope.group_name and s.topic_id = t.id and s.catch_up_of is null and s.state <> 'CANCELLED'
     where t.storage_id is not null
       and (t.name = scope.topic or t.namespace = scope.namespace or t.task = scope.task or t.name || '.' ~ _regex or s.scope_id = scope.id)
       and (s.id is not null
            or not exists (select from postbus.subscription ended
                            where ended.group_name = scope.group_name and ended.topic_id = t.id and ended.catch_up_of is null
                              and ended.state_changed_at >= scope.recorded_at))
     order by t.name;
end $$;

-- A scope as the audit log shows it, without its topic; null for a scope that is a topic.
create or replace function postbus.scope_target(scope postbus.scope) returns text
language sql immutable as $$
    select case when scope.key is not null then 'key ' || scope.key
                when scope.namespace is not null then 'namespace ' || scope.namespace
                when scope.task is not null then 'task ' || scope.task
                when scope.pattern is not null then 'pattern ' || scope.pattern end
$$;

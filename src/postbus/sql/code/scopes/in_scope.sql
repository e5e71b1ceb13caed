-- Whether a topic is in a scope.
create or replace function postbus.in_scope(scope postbus.scope, topic postbus.topic) returns boolean
language sql immutable parallel safe
return case
    when (scope).topic is not null then (scope).topic = (topic).name
    when (scope).namespace is not null then coalesce((scope).namespace = (topic).namespace, false)
    when (scope).task is not null then coalesce((scope).task = (topic).task, false)
    else (topic).name || '.' ~ postbus.pattern_regex((scope).pattern)
end;

-- A group's record of a scope; or, if there is none, the record that would be made now.
create or replace function postbus.as_scope(
    group_name text,
    topic      text,
    key        text,
    namespace  text,
    task       text,
    pattern    text
) returns postbus.scope
language plpgsql stable as $$
declare
    _scope postbus.scope;
begin
    select * into _scope from postbus.scope c
     where c.group_name = as_scope.group_name
       and (c.topic, c.key, c.namespace, c.task, c.pattern)
           is not distinct from (as_scope.topic, as_scope.key, as_scope.namespace, as_scope.task, as_scope.pattern);
    if _scope.id is null then
        _scope.group_name := group_name;
        _scope.topic := topic;
        _scope.key := key;
        _scope.namespace := namespace;
        _scope.task := task;
        _scope.pattern := pattern;
        _scope.recorded_at := clock_timestamp();
    end if;
    return _scope;
end $$;

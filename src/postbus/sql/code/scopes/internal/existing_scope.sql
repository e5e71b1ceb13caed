-- A group's record of a scope. Refuses a scope that is not recorded.
create or replace function postbus.existing_scope(
    group_name text,
    topic      text,
    key        text,
    namespace  text,
    task       text,
    pattern    text
) returns postbus.scope
language plpgsql as $$
declare
    _scope postbus.scope;
begin
    perform postbus.check_scope(topic, key, namespace, task, pattern);
    _scope := postbus.as_scope(group_name, topic, key, namespace, task, pattern);
    if _scope.id is null then
        perform postbus.refuse('PB406', format('group %L has no record of that scope', group_name),
            format('list its scopes: postbus groups scopes %s', group_name));
    end if;
    return _scope;
end $$;

-- Refuses a scope that is not exactly one of: a topic, a key of a topic, a namespace, a task, a pattern of names.
create or replace function postbus.check_scope(topic text, key text, namespace text, task text, pattern text) returns void
language plpgsql as $$
begin
    if num_nonnulls(topic, namespace, task, pattern) <> 1 then
        perform postbus.refuse('PB402', 'a group subscribes to a topic, a namespace, a task or a pattern',
            'give one of them; to subscribe to several scopes, call once for each');
    elsif key is not null and topic is null then
        perform postbus.refuse('PB402', 'a key belongs to one topic', 'name the topic, or leave the key out');
    elsif length(key) > 1000 or octet_length(key) > 2000 then
        perform postbus.refuse('PB402', 'key has more than 1000 characters or 2000 bytes', 'give the key of a message: these are shorter');
    elsif not postbus.is_name(coalesce(namespace, task, '_')) then
        perform postbus.refuse('PB401', format('bad %s name %L', case when task is null then 'namespace' else 'task' end,
                                               left(coalesce(namespace, task), 220)),
            'a name has 1 to 200 letters, digits or . _ - : / and starts with a letter, a digit or _');
    elsif length(pattern) > 200 or pattern !~ '^([*#]|[A-Za-z0-9_:/-]+)(\.([*#]|[A-Za-z0-9_:/-]+))*$' or pattern !~ '[*#]' then
        perform postbus.refuse('PB401', format('bad pattern %L', left(pattern, 220)),
            'words are separated by dots, and at least one of them is * (one word) or # (any number of words), as in orders.*');
    end if;
end $$;

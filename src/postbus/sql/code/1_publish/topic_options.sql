-- The options that hold for a topic: its own row, or else the row '*'.
-- Refuses a name that breaks the rules.
create or replace function postbus.topic_options(name text) returns postbus.topic
language plpgsql stable
set search_path = pg_catalog, pg_temp as $$
declare
    _topic postbus.topic;
begin
    if name is null or name !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$' then
        perform postbus.refuse('PB401', format('bad topic name %s', coalesce(quote_literal(left(name, 220)), 'null')),
            'a name has 1 to 200 letters, digits or . _ - : / and starts with a letter, a digit or _');
    end if;
    select * into _topic from postbus.topic t
     where t.id in (postbus.topic_id(topic_options.name), 0)
     order by t.id = 0 limit 1;
    if _topic.id = 0 then
        _topic.id := postbus.topic_id(name);
        _topic.name := null;            -- tells that the topic has no row
    elsif _topic.name <> name then
        perform postbus.refuse('PB401', format('topic name %L has the same id as topic %L', name, _topic.name),
            'choose another name');
    end if;
    return _topic;
end $$;

-- The options of a topic: its own row, or else the row '*', without a name. Refuses a name that breaks the rules.
create or replace function postbus.topic_options(name text) returns postbus.topic
language plpgsql stable as $$
declare
    _id    bigint := postbus.topic_id(name);
    _topic postbus.topic;
begin
    select * into _topic from postbus.topic t where t.id = _id;
    if _topic.name = topic_options.name then
        return _topic;
    elsif _topic.name is not null then
        perform postbus.refuse('PB401', format('topic name %L has the same id as topic %L', name, _topic.name),
            'choose another name');
    elsif name is null or name !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$' then
        perform postbus.refuse('PB401', format('bad topic name %s', coalesce(quote_literal(left(name, 220)), 'null')),
            'a name has 1 to 200 letters, digits or . _ - : / and starts with a letter, a digit or _');
    end if;
    select * into _topic from postbus.topic t where t.id = 0;
    _topic.id := _id;
    _topic.name := null;
    return _topic;
end $$;

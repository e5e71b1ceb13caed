-- Refuses a caller that was not granted an action on a topic.
create or replace function postbus.check_granted(action text, topic text) returns void
language plpgsql stable as $$
begin
    if not postbus.is_granted(action, topic) then
        raise exception using errcode = '42501', message = format('%s may not %s topic %s', postbus.caller(),
            case action when 'publish' then 'publish to' when 'consume' then 'consume from' else action end, quote_nullable(topic)),
            hint = format('let an administrator run: select postbus.grant_topic(%L, %L, %L)', postbus.caller(), topic, action);
    end if;
end $$;

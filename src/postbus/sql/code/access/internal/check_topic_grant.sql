-- Refuses a pattern or an action that no grant can have.
create or replace function postbus.check_topic_grant(pattern text, action text) returns void
language plpgsql as $$
begin
    perform postbus.check_patterns(array[pattern], 'topic');
    if (action in ('publish', 'consume', 'read')) is not true then
        perform postbus.refuse('PB402', format('action %s is not known', quote_nullable(action)), 'use publish, consume or read');
    end if;
end $$;

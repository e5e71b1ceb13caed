-- A group's subscription to a topic, locked. Refuses a group that is not subscribed.
--
-- Locks: the subscription's row.
create or replace function postbus.existing_subscription(topic text, group_name text) returns postbus.subscription
language plpgsql as $$
declare
    _topic postbus.topic := postbus.topic_options(topic);
    _found postbus.subscription;
begin
    select * into _found from postbus.subscription s
     where s.topic_id = _topic.id and s.group_name = existing_subscription.group_name and s.state <> 'CANCELLED' and s.catch_up_of is null
       for no key update;
    if _found.id is null then
        perform postbus.refuse('PB406', format('group %L has no subscription to topic %L', group_name, topic),
            case when exists (select from postbus.subscription s
                               where s.topic_id = _topic.id and s.group_name = existing_subscription.group_name and s.catch_up_of is null)
                 then format('it was CANCELLED, which is final; make a new one: postbus groups subscribe %s %s', group_name, topic)
                 else format('subscribe it: postbus groups subscribe %s %s; or list the groups of the topic: postbus groups list %s',
                             group_name, topic, topic) end);
    end if;
    return _found;
end $$;

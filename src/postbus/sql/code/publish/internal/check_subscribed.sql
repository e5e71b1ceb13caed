-- Refuses to publish to a topic that blocks writes while no group is subscribed.
create or replace function postbus.check_subscribed(topic postbus.topic) returns void
language plpgsql as $$
declare
    _idle postbus.subscription;     -- a subscription that could become ACTIVE again
begin
    if not exists (select from postbus.subscription s
                    where s.topic_id = topic.id and (s.state = 'ACTIVE' or (s.state = 'PAUSED' and s.waits_for_queue)))
    then
        select * into _idle from postbus.subscription s
         where s.topic_id = topic.id and s.state in ('PAUSED', 'DEAD') and s.catch_up_of is null
         order by s.state_changed_at desc, s.id desc limit 1;
        perform postbus.refuse('PB430', format('topic %L has no ACTIVE subscription, and blocks writes without one', topic.name),
            case _idle.state when 'PAUSED' then format('resume its group: postbus groups resume %s %s', topic.name, _idle.group_name)
                             when 'DEAD' then format('start the worker of its group, or: postbus groups resurrect %s %s',
                                                     topic.name, _idle.group_name)
                             else format('subscribe a group first: postbus groups subscribe GROUP %s', topic.name) end
            || format('; or accept messages without groups: postbus topics set %s --no-block-writes-on-zero-subscriptions', topic.name));
    end if;
end $$;

-- Refuses to write to a topic that nobody is subscribed to: for those that block writes then.
create or replace function postbus.check_subscribed(topic postbus.topic) returns void
language plpgsql as $$
begin
    if not exists (select from postbus.subscription s
                    where s.topic_id = topic.id and (s.state = 'ACTIVE' or (s.state = 'PAUSED' and s.waits_for_queue)))
    then
        perform postbus.refuse('PB430', format('topic %L has no ACTIVE subscription, and blocks writes without one', topic.name),
            'subscribe a group first, or set block_writes_on_zero_subscriptions to false');
    end if;
end $$;

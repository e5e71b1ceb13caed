-- How long a topic keeps messages that its groups are done with, and how long it keeps any message at most. While no group keeps
-- messages, zero_subscription_retention counts instead of retention, whether it is shorter or longer. A DEAD group keeps messages
-- for dead_retention.
create or replace function postbus.log_retention(topic postbus.topic, as_of timestamptz, out keeps interval, out most interval)
language sql stable as $$
    select case when exists (select from postbus.subscription s
                              where s.topic_id = topic.id
                                and (s.state in ('ACTIVE', 'PAUSED')
                                     or s.state = 'DEAD' and s.state_changed_at > as_of - topic.dead_retention))
                then topic.retention else topic.zero_subscription_retention end,
           topic.max_retention
$$;

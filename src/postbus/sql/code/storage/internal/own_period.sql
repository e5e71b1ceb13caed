-- How long a partition of a topic's own log storage is written to: a twelfth of the topic's retention, up to a day.
create or replace function postbus.own_period(topic postbus.topic) returns interval
language sql immutable as $$
    select greatest(least(greatest(topic.retention, topic.zero_subscription_retention) / 12, interval '1 day'), interval '1 minute')
$$;

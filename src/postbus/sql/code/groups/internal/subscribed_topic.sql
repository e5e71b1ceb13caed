-- The topic of a subscription.
create or replace function postbus.subscribed_topic(subscription_id bigint) returns postbus.topic
language sql stable as $$
    select t from postbus.subscription s join postbus.topic t on t.id = s.topic_id where s.id = subscribed_topic.subscription_id
$$;

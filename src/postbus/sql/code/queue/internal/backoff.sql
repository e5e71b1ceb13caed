-- The delay before the next attempt: exponential, with jitter, at most retry_max.
create or replace function postbus.backoff(topic postbus.topic, attempts integer) returns interval
language sql volatile as $$
    select least(topic.retry_initial * least(power(topic.retry_factor, least(attempts - 1, 60)), 1e9), topic.retry_max)
           * (1 + topic.retry_jitter * (2 * random() - 1))
$$;

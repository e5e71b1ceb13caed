-- Makes messages wait for another attempt: for `delay`, or for the topic's backoff. With `trial` they are suspects.
--
-- Writes: delayed.
create or replace function postbus.delay_retry(
    topic_id  bigint,
    ordered   boolean,
    messages  postbus.queue_message[],
    topic     postbus.topic,
    delay     interval,
    error     text,
    as_of     timestamptz,
    trial     integer default null,
    outlasted integer default null
) returns void
language sql as $$
    insert into postbus.delayed (topic_id, id, due_at, published_at, attempts, priority, ordered, key, correlation_id,
                                 content_type, headers, payload, last_error, trial, outlasted)
    select delay_retry.topic_id, m.id, as_of + coalesce(delay_retry.delay, postbus.backoff(topic, m.attempts)), m.published_at, m.attempts,
           m.priority, delay_retry.ordered and m.key is not null, m.key, m.correlation_id, m.content_type, m.headers, m.payload,
           left(delay_retry.error, 4000), delay_retry.trial, delay_retry.outlasted
      from unnest(messages) as m
$$;

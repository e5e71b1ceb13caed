-- Lets messages that were leased wait for another attempt: for `delay`, or by the topic's backoff. With a trial they are suspects.
--
-- Writes: delayed.
create or replace function postbus.try_later(
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
    select try_later.topic_id, m.id, as_of + coalesce(try_later.delay, postbus.backoff(topic, m.attempts)), m.published_at, m.attempts,
           m.priority, try_later.ordered and m.key is not null, m.key, m.correlation_id, m.content_type, m.headers, m.payload,
           left(try_later.error, 4000), try_later.trial, try_later.outlasted
      from unnest(messages) as m
$$;

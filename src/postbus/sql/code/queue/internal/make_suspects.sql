-- Makes suspects of messages that were in hand together when their process ended. The attempt does not count. They are due at once,
-- to be tried an eighth at a time of all messages of the topic that were in hand together. A message that outlasted its time alone
-- is due later.
--
-- Writes: delayed.
create or replace function postbus.make_suspects(
    topic_id  bigint,
    ordered   boolean,
    messages  postbus.queue_message[],
    together  bigint,
    held      text,
    outlasted integer,
    as_of     timestamptz
) returns void
language sql as $$
    insert into postbus.delayed (topic_id, id, due_at, published_at, attempts, priority, ordered, key, correlation_id,
                                 content_type, headers, payload, last_error, trial, outlasted)
    select make_suspects.topic_id, m.id, least(as_of, clock_timestamp()) + postbus.suspect_delay(outlasted), m.published_at,
           greatest(m.attempts - 1, 0), m.priority, make_suspects.ordered and m.key is not null, m.key,
           m.correlation_id, m.content_type, m.headers, m.payload,
           format('in hand with others when a lease ended without an answer; %s', held),
           least(greatest(together / 8, 1), 1000), outlasted
      from unnest(messages) as m
$$;

-- Puts messages that were in hand together when their process ended apart from others, as suspects: the attempt does not count.
-- They come back at once, an eighth at a time of all that were in hand of a topic together. Those that took long before come later.
--
-- Writes: delayed.
create or replace function postbus.suspect(
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
    select suspect.topic_id, m.id, least(as_of, clock_timestamp()) + postbus.behind_others(outlasted), m.published_at,
           greatest(m.attempts - 1, 0), m.priority, suspect.ordered and m.key is not null, m.key,
           m.correlation_id, m.content_type, m.headers, m.payload,
           format('in hand with others when a lease ended without an answer; %s', held),
           least(greatest(together / 8, 1), 1000), outlasted
      from unnest(messages) as m
$$;

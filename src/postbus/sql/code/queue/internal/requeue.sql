-- Returns messages to the queue, where they may be claimed at once.
--
-- Writes: queued.
create or replace function postbus.requeue(topic_id bigint, ordered boolean, messages postbus.queue_message[]) returns void
language sql as $$
    insert into postbus.queued (topic_id, id, published_at, attempts, priority, ordered, key, correlation_id, content_type, headers, payload)
    select requeue.topic_id, m.id, m.published_at, m.attempts, m.priority, requeue.ordered and m.key is not null, m.key, m.correlation_id,
           m.content_type, m.headers, m.payload
      from unnest(messages) as m
     order by m.id
$$;

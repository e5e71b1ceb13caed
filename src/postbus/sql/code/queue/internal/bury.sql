-- Makes dead letters of messages.
--
-- Writes: dead_letter; see pass_keys.
create or replace function postbus.bury(
    topic_id bigint,
    ordered  boolean,
    messages postbus.queue_message[],
    reason   text,
    error    text,
    as_of    timestamptz
) returns void
language plpgsql as $$
begin
    insert into postbus.dead_letter (id, topic_id, died_at, reason, last_error, published_at, attempts, priority, key,
                                     correlation_id, content_type, headers, payload)
    select m.id, bury.topic_id, as_of, left(bury.reason, 1000), left(bury.error, 4000), m.published_at, m.attempts, m.priority, m.key,
           m.correlation_id, m.content_type, m.headers, m.payload
      from unnest(messages) as m;
    if ordered then
        perform postbus.pass_keys(topic_id, array(select m.id from unnest(messages) as m),
                                  array(select distinct m.key from unnest(messages) as m));
    end if;
end $$;

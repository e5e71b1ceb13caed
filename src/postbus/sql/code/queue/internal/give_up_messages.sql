-- Makes messages dead letters.
--
-- Writes: dead_letter; see pass_keys.
create or replace function postbus.give_up_messages(
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
    select m.id, give_up_messages.topic_id, as_of, left(give_up_messages.reason, 1000), left(give_up_messages.error, 4000),
           m.published_at, m.attempts, m.priority, m.key,
           m.correlation_id, m.content_type, m.headers, m.payload
      from unnest(messages) as m;
    if ordered then
        perform postbus.pass_keys(topic_id, array(select m.id from unnest(messages) as m),
                                  array(select distinct m.key from unnest(messages) as m));
    end if;
end $$;

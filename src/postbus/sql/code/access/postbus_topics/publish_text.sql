-- Publishes a text to a topic that the caller was granted: see postbus.publish(text, text, ...).
--
-- Writes: see postbus.publish.
create or replace function postbus_topics.publish(
    topic          text,
    payload        text,
    key            text default null,
    headers        jsonb default null,
    priority       integer default 4,
    delay          interval default null,
    deliver_at     timestamptz default null,
    dedup_key      text default null,
    correlation_id text default null
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_granted('publish', topic);
    return postbus.publish(topic, payload, key, headers, priority, delay, deliver_at, dedup_key, correlation_id);
end $$;

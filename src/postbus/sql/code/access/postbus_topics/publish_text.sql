-- Publishes a text to a topic that the caller was granted: see publish(text, bytea, ...), which checks that.
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
language sql
return postbus_topics.publish(topic, convert_to(payload, 'UTF8'), key, headers, priority, delay, deliver_at,
    dedup_key, correlation_id, 'text/plain; charset=utf-8');

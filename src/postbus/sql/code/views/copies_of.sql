-- The copies of one message of the log that groups have as deferred messages and dead letters, even if the log has dropped the
-- message. The columns from status on are those of delivery.
create or replace function postbus.copies_of(topic text, id bigint) returns table (
    published_at    timestamptz,
    key             text,
    correlation_id  text,
    content_type    text,
    headers         jsonb,
    payload         bytea,
    subscription_id bigint,
    group_name      text,
    status          text,
    settled_at      timestamptz,
    attempts        integer,
    last_error      text,
    holder          text
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select r.published_at, r.key, r.correlation_id, r.content_type, r.headers, r.payload, coalesce(s.catch_up_of, s.id), s.group_name,
           case when r.parked then 'WAITING' else 'RETRYING' end, null::timestamptz, r.attempts, r.last_error, l.holder
      from postbus.subscription s
      join postbus.lane l on l.subscription_id = s.id
      join postbus.deferred r on r.subscription_id = s.id and r.lane = l.lane and r.id = copies_of.id
     where s.topic_id = postbus.topic_id(copies_of.topic)
    union all
    select d.published_at, d.key, d.correlation_id, d.content_type, d.headers, d.payload, s.id, s.group_name, 'DEAD', d.died_at, d.attempts,
           coalesce(d.last_error, d.reason), null
      from postbus.dead_letter d
      join postbus.subscription s on s.id = d.subscription_id
     where d.id = copies_of.id and s.topic_id = postbus.topic_id(copies_of.topic)
     order by 8
$$;

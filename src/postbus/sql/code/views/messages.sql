-- Every message of a queue that Postbus still has, and every dead letter, one row each, with its state. Filter by topic_id
-- (postbus.topic_id(name)), which has indexes; a filter by topic reads the messages of all topics.
create or replace view postbus.messages as
with one as (
    select topic_id, 'waiting' as state, id, published_at, attempts, priority, key,
           correlation_id, content_type, headers, payload, null::timestamptz as due_at, null::text as member, null::text as last_error,
           0::bigint as subscription_id
      from postbus.queued where not parked
    union all
    select topic_id, 'parked', id, published_at, attempts, priority, key,
           correlation_id, content_type, headers, payload, null, null, null, 0
      from postbus.queued where ordered and parked            -- each of the two conditions has an index
    union all
    select topic_id, case when attempts > 0 or trial is not null then 'retrying' else 'scheduled' end, id, published_at, attempts, priority, key,
           correlation_id, content_type, headers, payload, due_at, null, last_error, 0
      from postbus.delayed
    union all
    select l.topic_id, 'leased', m.id, m.published_at, m.attempts, m.priority, m.key,
           m.correlation_id, m.content_type, m.headers, m.payload, l.ends_at, l.member, null, 0
      from postbus.lease l cross join unnest(l.messages) as m
     where m.id = any (l.open_ids)
    union all
    select f.topic_id, 'finished', m.id, m.published_at, m.attempts, m.priority, m.key,
           m.correlation_id, m.content_type, m.headers, m.payload, f.finished_at, f.member, null, 0
      from postbus.finished f cross join unnest(f.messages) as m
    union all
    select topic_id, 'dead', id, published_at, attempts, priority, key,
           correlation_id, content_type, headers, payload, died_at, null, concat_ws(': ', reason, last_error), subscription_id
      from postbus.dead_letter
)
select known.name as topic, one.id, one.state, one.key, one.priority, one.attempts, one.published_at,
       one.due_at as at,               -- due, lease ends, finished or died
       one.member, one.last_error, one.correlation_id, one.content_type, one.headers,
       postbus.payload_json(one.payload, one.content_type) as payload_json, one.payload,
       (select s.group_name from postbus.subscription s where s.id = one.subscription_id) as group_name,
       postbus.event_id(known.name, one.id, one.published_at, one.headers, (select postbus.source())) as event_id,
       one.topic_id
  from one
  left join postbus.topic t on t.id = one.topic_id
 cross join lateral (select coalesce(t.name, (select s.name from postbus.topic_seen s where s.topic_id = one.topic_id limit 1)) as name) as known;

-- The dead letters, with the reason. Filter by topic_id (postbus.topic_id(name)), which has an index.
create or replace view postbus.dead_letters as
select known.name as topic,
       (select s.group_name from postbus.subscription s where s.id = d.subscription_id) as group_name,
       d.id, d.died_at, d.reason, d.last_error, d.attempts, d.key, d.priority, d.published_at,
       d.correlation_id, d.content_type, d.headers, postbus.payload_json(d.payload, d.content_type) as payload_json, d.payload,
       postbus.event_id(known.name, d.id, d.published_at, d.headers, (select postbus.source())) as event_id,
       d.topic_id
  from postbus.dead_letter d
  left join postbus.topic t on t.id = d.topic_id
 cross join lateral (select coalesce(t.name, (select s.name from postbus.topic_seen s where s.topic_id = d.topic_id limit 1)) as name) as known;

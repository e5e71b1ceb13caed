-- Every message of the log on its own row, as it was published.
create or replace view postbus.log as
select t.name as topic, postbus.first_id(s.sequence) + message.n - 1 as id, s.lane, s.sequence, (message.n - 1)::integer as index,
       s.published_at, s.keys[message.n] as key, s.correlation_ids[message.n] as correlation_id,
       coalesce(s.content_types[message.n], s.content_type) as content_type, s.headers[message.n] as headers,
       postbus.payload_json(message.payload, coalesce(s.content_types[message.n], s.content_type)) as payload_json, message.payload, s.txid,
       s.topic_id, s.count as segment_count,
       postbus.event_id(t.name, postbus.first_id(s.sequence) + message.n - 1, s.published_at, s.headers[message.n],
                        (select postbus.source())) as event_id
  from postbus.segment s
  join postbus.topic t on t.id = s.topic_id
 cross join lateral unnest(postbus.payloads_of(s.payloads, s.count, s.in_lines)) with ordinality as message (payload, n);

-- Every message of the log with the groups that it is required for, those that are done with it, and what that makes of
-- it: see state_of.
create or replace view postbus.message_states as
select t.name as topic, postbus.first_id(s.position) + message.n - 1 as id, s.published_at, s.keys[message.n] as key,
       s.correlation_ids[message.n] as correlation_id, coalesce(s.content_types[message.n], s.content_type) as content_type,
       s.headers[message.n] as headers,
       postbus.payload_json(message.payload, coalesce(s.content_types[message.n], s.content_type)) as payload_json, message.payload,
       state.required, state.completed, state.status, state.settled_at
  from postbus.segment s
  join postbus.topic t on t.id = s.topic_id
 cross join lateral postbus.state_of(s.topic_id, s.lane, s.position, s.txid, s.count, s.published_at, 0, s.count - 1) as state
  join lateral unnest(postbus.payloads_of(s.payloads, s.count, s.in_lines)) with ordinality as message (payload, n)
    on message.n - 1 between state.first_index and state.last_index;

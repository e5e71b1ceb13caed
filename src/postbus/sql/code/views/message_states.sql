-- Every message of the log with the groups that are required for it, those that have completed it, and its status: see states.
create or replace view postbus.message_states as
select t.name as topic, postbus.first_id(s.sequence) + message.n - 1 as id, s.published_at, s.keys[message.n] as key,
       s.correlation_ids[message.n] as correlation_id, coalesce(s.content_types[message.n], s.content_type) as content_type,
       s.headers[message.n] as headers,
       postbus.payload_json(message.payload, coalesce(s.content_types[message.n], s.content_type)) as payload_json, message.payload,
       state.required, state.completed, state.status,
       postbus.settled_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.n::integer - 1,
                          state.required, state.completed, state.status) as settled_at
  from postbus.topic t
 cross join lateral postbus.states_of_topic(t.id) as state
  join postbus.segment s on s.storage_id = t.storage_id and s.topic_id = t.id and s.sequence = state.sequence
  join lateral unnest(postbus.payloads_of(s.payloads, s.count, s.in_lines)) with ordinality as message (payload, n)
    on message.n - 1 between state.first_index and state.last_index
 where t.storage_id is not null;

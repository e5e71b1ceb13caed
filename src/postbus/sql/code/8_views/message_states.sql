-- Every message of the log with the groups that it is required for, those that are done with it, and what that makes of
-- it: see state_of.
create or replace view postbus.message_states as
select m.topic, m.id, m.published_at, m.key, m.correlation_id, m.content_type, m.headers, m.payload_json, m.payload,
       state.required, state.completed, state.status, state.settled_at
  from postbus.log m
 cross join lateral postbus.state_of(m.topic_id, m.id, m.lane, m.position, m.txid, m.index, m.segment_count, m.published_at) as state;

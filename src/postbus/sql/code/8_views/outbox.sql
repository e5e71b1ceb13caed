-- Every message that there is, as a row of a fan-out outbox has it. Messages of queues need one group; those of PUB_SUB
-- topics the groups that were subscribed when they were committed: see state_of.
create or replace view postbus_outbox.outbox as
select postbus.first_id(s.position) + message.index as id, t.name as topic,
       postbus.payload_json(own.payloads[message.index + 1], coalesce(s.content_types[message.index + 1], s.content_type)) as payload,
       s.headers[message.index + 1] as headers, s.correlation_ids[message.index + 1] as correlation_id, s.keys[message.index + 1] as message_group,
       null::integer as priority, s.published_at as created_at, state.settled_at as processed_at, state.status,
       cardinality(state.required) as required_consumer_groups, cardinality(state.completed) as completed_consumer_groups,
       null::integer as retry_count, null::text as error_message      -- of each group: see outbox_consumer_groups
  from postbus.segment s
  join postbus.topic t on t.id = s.topic_id
 cross join lateral (select postbus.payloads_of(s.payloads, s.count, s.in_lines) as payloads offset 0) as own
 cross join lateral postbus.state_of(s.topic_id, s.lane, s.position, s.txid, s.count, s.published_at, 0, s.count - 1) as state
 cross join lateral generate_series(state.first_index, state.last_index) as message (index)
 union all
select m.id, m.topic, m.payload_json, m.headers, m.correlation_id, m.key, m.priority::integer, m.published_at,
       case when m.state in ('finished', 'dead') then m.at end,
       case m.state when 'leased' then 'PROCESSING' when 'finished' then 'COMPLETED' when 'dead' then 'FAILED' else 'PENDING' end,
       1, case m.state when 'finished' then 1 else 0 end,
       case when m.state = 'retrying' then m.attempts else greatest(m.attempts - 1, 0) end, m.last_error
  from postbus.messages m
 where m.group_name is null;

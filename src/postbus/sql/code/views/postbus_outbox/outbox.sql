-- Every message, with the columns of a fan-out outbox. Messages of queues need one group; those of PUB_SUB topics the groups that
-- are required for them: see states. If all of these have died or ended before they had settled the message, no group is required
-- any more: then required_consumer_groups is null. It is 0 if no group ever was.
create or replace view postbus_outbox.outbox as
select postbus.first_id(s.sequence) + message.index as id, t.name as topic,
       postbus.payload_json(own.payloads[message.index + 1], coalesce(s.content_types[message.index + 1], s.content_type)) as payload,
       s.headers[message.index + 1] as headers, s.correlation_ids[message.index + 1] as correlation_id, s.keys[message.index + 1] as message_group,
       null::integer as priority, s.published_at as created_at,
       postbus.settled_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index,
                          state.required, state.completed, state.status) as processed_at,
       state.status,
       case when state.wanted then nullif(cardinality(state.required), 0) else 0 end as required_consumer_groups,
       cardinality(state.completed) as completed_consumer_groups,
       null::integer as retry_count, null::text as error_message      -- of each group: see outbox_consumer_groups
  from postbus.topic t
 cross join lateral postbus.states_of_topic(t.id) as state
  join postbus.segment s on s.storage_id = t.storage_id and s.topic_id = t.id and s.sequence = state.sequence
 cross join lateral (select postbus.payloads_of(s.payloads, s.count, s.in_lines) as payloads offset 0) as own
 cross join lateral generate_series(state.first_index, state.last_index) as message (index)
 where t.storage_id is not null
 union all
select m.id, m.topic, m.payload_json, m.headers, m.correlation_id, m.key, m.priority::integer, m.published_at,
       case when m.state in ('finished', 'dead') then m.at end,
       case m.state when 'leased' then 'PROCESSING' when 'finished' then 'COMPLETED' when 'dead' then 'FAILED' else 'PENDING' end,
       1, case m.state when 'finished' then 1 else 0 end,
       case when m.state = 'retrying' then m.attempts else greatest(m.attempts - 1, 0) end, m.last_error
  from postbus.messages m
 where m.group_name is null;

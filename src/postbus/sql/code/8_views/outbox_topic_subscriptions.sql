-- The newest subscription of each group to each topic, as a fan-out outbox has it. backfill_... tells of its last catch-up.
create or replace view postbus_outbox.outbox_topic_subscriptions as
select s.id, t.name as topic, s.group_name, s.state as subscription_status, s.subscribed_at, s.seen_at as last_active_at,
       postbus.first_wanted(s.id) as start_from_message_id, s.start_at as start_from_timestamp,
       extract(epoch from t.heartbeat_interval)::integer as heartbeat_interval_seconds,
       extract(epoch from t.heartbeat_timeout)::integer as heartbeat_timeout_seconds, s.seen_at as last_heartbeat_at,
       s.missed as consecutive_failures, coalesce(history.status, 'NOT_STARTED') as backfill_status,
       coalesce(history.total, 0) as backfill_total_messages, coalesce(history.processed, 0) as backfill_processed_messages,
       history.started_at as backfill_started_at, history.ended_at as backfill_completed_at, null::text as backfill_error_message
  from postbus.subscription s
  join postbus.topic t on t.id = s.topic_id
  left join lateral (select u.status, u.total, u.processed, u.started_at, u.ended_at from postbus.catch_ups u
                      where u.group_subscription_id = s.id order by u.started_at desc limit 1) as history on true
 where s.catch_up_of is null
   and not exists (select from postbus.subscription later
                    where later.topic_id = s.topic_id and later.group_name = s.group_name and later.catch_up_of is null and later.id > s.id);

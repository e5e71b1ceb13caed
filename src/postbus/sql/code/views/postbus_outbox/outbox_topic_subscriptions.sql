-- The newest subscription of each group to each topic, with the columns of a fan-out outbox. The columns backfill_... are about
-- its last catch-up. Columns that take longer are computed once for each subscription, and only if they are selected (hence the
-- offsets).
create or replace view postbus_outbox.outbox_topic_subscriptions as
select s.id, t.name as topic, s.group_name, s.state as subscription_status, s.subscribed_at, s.seen_at as last_active_at,
       wanted.first_id as start_from_message_id, s.start_at as start_from_timestamp,
       extract(epoch from t.heartbeat_interval)::integer as heartbeat_interval_seconds,
       extract(epoch from t.heartbeat_timeout)::integer as heartbeat_timeout_seconds, s.seen_at as last_heartbeat_at,
       s.missed as consecutive_failures, coalesce((history.of).status, 'NOT_STARTED') as backfill_status,
       coalesce((history.of).total, 0) as backfill_total_messages, coalesce((history.of).processed, 0) as backfill_processed_messages,
       (history.of).started_at as backfill_started_at, (history.of).ended_at as backfill_completed_at, null::text as backfill_error_message
  from postbus.subscription s
  join postbus.topic t on t.id = s.topic_id
 cross join lateral (select postbus.first_wanted(s.id) as first_id offset 0) as wanted
 cross join lateral (select postbus.last_catch_up(s.id) as of offset 0) as history
 where s.catch_up_of is null
   and (s.state <> 'CANCELLED'
        or not exists (select from postbus.subscription later
                        where later.topic_id = s.topic_id and later.group_name = s.group_name and later.catch_up_of is null and later.id > s.id));

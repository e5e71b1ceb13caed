-- Every topic that was created or used, with its options and the numbers of its messages. Columns that are not selected are not
-- counted: a join on true, of one row, is left out then.
create or replace view postbus.topics as
with known as (
    select t.*, true as configured from postbus.topic t where t.id <> 0
    union all
    select (jsonb_populate_record(t, jsonb_build_object('id', s.topic_id, 'name', s.name, 'created_at', null))).*, false
      from (select distinct topic_id, name from postbus.topic_seen) as s
      join postbus.topic t on t.id = 0
     where not exists (select from postbus.topic own where own.id = s.topic_id)
)
select k.name, k.semantics, k.ordered, k.paused_at, k.lease, k.max_attempts, k.retry_initial, k.retry_factor, k.retry_max,
       k.retry_jitter, k.retention, k.dedup_window, k.max_payload_bytes, k.notify, k.configured, k.created_at,
       k.tracking, k.lanes, k.storage, k.segment_size, k.zero_subscription_retention, k.block_writes_on_zero_subscriptions,
       k.max_retention, k.zombie_time, k.heartbeat_interval, k.heartbeat_timeout,
       published.messages as published, groups.count as groups,
       waiting.count as waiting, delayed.count as delayed, leased.count as leased, dead.count as dead,
       waiting.oldest_at, k.named_lanes, k.namespace, k.task, k.dead_retention, k.id as topic_id
  from known k
  left join postbus.topic_count published on published.topic_id = k.id
 left join lateral (select count(*) as count from postbus.subscription s where s.topic_id = k.id and s.state <> 'CANCELLED') as groups on true
 left join lateral (select count(*) as count, min(q.published_at) as oldest_at from postbus.queued q where q.topic_id = k.id) as waiting on true
 left join lateral (select count(*) as count from postbus.delayed d where d.topic_id = k.id) as delayed on true
 left join lateral (select coalesce(sum(cardinality(l.open_ids)), 0) as count from postbus.lease l where l.topic_id = k.id) as leased on true
 left join lateral (select count(*) as count from postbus.dead_letter d where d.topic_id = k.id) as dead on true;

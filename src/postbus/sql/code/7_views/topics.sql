-- Every topic that was created or used, with its options and what it holds at the moment.
create or replace view postbus.topics as
with known as (
    select t.*, true as configured from postbus.topic t where t.id <> 0
    union all
    select s.topic_id, s.name, t.semantics, t.ordered, t.lease, t.max_attempts, t.retry_initial, t.retry_factor, t.retry_max,
           t.retry_jitter, t.retention, t.dedup_window, t.max_payload_bytes, t.notify, null::timestamptz, null::timestamptz, false
      from (select distinct topic_id, name from postbus.topic_seen) as s
      join postbus.topic t on t.id = 0
     where not exists (select from postbus.topic own where own.id = s.topic_id)
)
select k.name, k.semantics, k.ordered, k.paused_at, k.lease, k.max_attempts, k.retry_initial, k.retry_factor, k.retry_max,
       k.retry_jitter, k.retention, k.dedup_window, k.max_payload_bytes, k.notify, k.configured, k.created_at,
       waiting.count as waiting, delayed.count as delayed, leased.count as leased, dead.count as dead,
       waiting.oldest_at
  from known k
 cross join lateral (select count(*) as count, min(q.published_at) as oldest_at from postbus.queued q where q.topic_id = k.id) as waiting
 cross join lateral (select count(*) as count from postbus.delayed d where d.topic_id = k.id) as delayed
 cross join lateral (select coalesce(sum(cardinality(l.open_ids)), 0) as count from postbus.lease l where l.topic_id = k.id) as leased
 cross join lateral (select count(*) as count from postbus.dead_letter d where d.topic_id = k.id) as dead;

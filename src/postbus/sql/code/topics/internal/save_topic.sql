-- Stores the options of a topic.
--
-- Writes: topic.
create or replace function postbus.save_topic(topic postbus.topic) returns void
language sql as $$
    update postbus.topic t
       set semantics = topic.semantics, ordered = topic.ordered, lease = topic.lease, max_attempts = topic.max_attempts,
           retry_initial = topic.retry_initial, retry_factor = topic.retry_factor, retry_max = topic.retry_max,
           retry_jitter = topic.retry_jitter, retention = topic.retention, dedup_window = topic.dedup_window,
           max_payload_bytes = topic.max_payload_bytes, notify = topic.notify, tracking = topic.tracking, lanes = topic.lanes,
           named_lanes = topic.named_lanes,
           storage = topic.storage, storage_id = topic.storage_id, segment_size = topic.segment_size,
           zero_subscription_retention = topic.zero_subscription_retention,
           block_writes_on_zero_subscriptions = topic.block_writes_on_zero_subscriptions, max_retention = topic.max_retention,
           dead_retention = topic.dead_retention,
           zombie_time = topic.zombie_time, heartbeat_interval = topic.heartbeat_interval, heartbeat_timeout = topic.heartbeat_timeout,
           namespace = topic.namespace, task = topic.task
     where t.id = topic.id
$$;

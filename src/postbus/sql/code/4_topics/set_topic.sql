-- Changes options of a topic.
--
-- Writes: topic; see storage_for.  Locks: the topic's row.
create or replace function postbus.set_topic(name text, options jsonb) returns postbus.topic
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _before postbus.topic := postbus.existing_topic(name);
    _after  postbus.topic := postbus.with_options(_before, options);
begin
    if _after.ordered <> _before.ordered then
        perform postbus.check_idle(_before);
    end if;
    if _after.semantics <> _before.semantics then
        perform postbus.check_idle(_before);
        if _before.semantics = 'PUB_SUB' then
            perform postbus.refuse('PB408', format('topic %L is PUB_SUB', name),
                'delete it and create it again as a QUEUE: its groups have no meaning there');
        end if;
        _after.storage_id := postbus.storage_for(_after);
    elsif _after.semantics = 'PUB_SUB' then
        if (_after.lanes, _after.storage) is distinct from (_before.lanes, _before.storage) then
            perform postbus.refuse('PB408', format('lanes and storage of topic %L cannot change', name),
                'they decide where messages are: create another topic');
        elsif _after.storage = 'shared' and postbus.storage_for(_after) <> _before.storage_id then
            perform postbus.refuse('PB408', format('topic %L shares storage with topics of its retention', name),
                'stay within it, or create a topic with storage own');
        end if;
    end if;
    update postbus.topic t
       set semantics = _after.semantics, ordered = _after.ordered, lease = _after.lease, max_attempts = _after.max_attempts,
           retry_initial = _after.retry_initial, retry_factor = _after.retry_factor, retry_max = _after.retry_max,
           retry_jitter = _after.retry_jitter, retention = _after.retention, dedup_window = _after.dedup_window,
           max_payload_bytes = _after.max_payload_bytes, notify = _after.notify, tracking = _after.tracking, lanes = _after.lanes,
           storage = _after.storage, storage_id = _after.storage_id, segment_size = _after.segment_size,
           zero_subscription_retention = _after.zero_subscription_retention,
           block_writes_on_zero_subscriptions = _after.block_writes_on_zero_subscriptions, max_retention = _after.max_retention,
           zombie_time = _after.zombie_time, heartbeat_interval = _after.heartbeat_interval, heartbeat_timeout = _after.heartbeat_timeout
     where t.id = _before.id;
    return _after;
end $$;

-- Refuses options of a topic that are invalid or contradict one another.
create or replace function postbus.check_topic(topic postbus.topic) returns void
language plpgsql
set search_path = pg_catalog, pg_temp as $$
declare
    _wrong text;
begin
    _wrong := case
        when topic.semantics not in ('QUEUE', 'PUB_SUB') then
            format('semantics %L is not known; use ''QUEUE'' or ''PUB_SUB''', topic.semantics)
        when topic.semantics = 'QUEUE' and topic.tracking is not null then 'tracking is for PUB_SUB topics'
        when topic.semantics = 'QUEUE' and topic.block_writes_on_zero_subscriptions then
            'block_writes_on_zero_subscriptions is for PUB_SUB topics: consumers of a QUEUE can come later'
        when topic.semantics = 'QUEUE' and topic.storage <> 'shared' then 'storage is for PUB_SUB topics'
        when topic.semantics = 'PUB_SUB' and (topic.tracking in ('REFERENCE_COUNTING', 'OFFSET_WATERMARK')) is not true then
            format('tracking %L is not known; use ''REFERENCE_COUNTING'' or ''OFFSET_WATERMARK''', topic.tracking)
        when topic.semantics = 'PUB_SUB' and topic.ordered then
            'ordered is for QUEUE topics: PUB_SUB topics always keep the order per key'
        when not postbus.is_name(coalesce(topic.namespace, '_')) or not postbus.is_name(coalesce(topic.task, '_')) then
            'a namespace or a task has 1 to 200 letters, digits or . _ - : / and starts with a letter, a digit or _'
        when topic.storage not in ('shared', 'own') then format('storage %L is not known; use ''shared'' or ''own''', topic.storage)
        when greatest(topic.lease, topic.retry_initial, topic.retry_max, topic.retention, topic.dedup_window, topic.max_retention,
                      topic.zero_subscription_retention, topic.dead_retention, topic.zombie_time, topic.heartbeat_interval, topic.heartbeat_timeout)
             > interval '1000 years' then 'durations go up to 1000 years'        -- times that are computed with longer ones do not exist
        when topic.semantics = 'QUEUE' and topic.named_lanes then 'named lanes are for PUB_SUB topics: use ordered'
        when topic.lanes not between 1 and 1024 then 'lanes goes from 1 to 1024, or is named'
        when topic.segment_size not between 1 and 1000 then 'segment_size goes from 1 to 1000'
        when topic.zero_subscription_retention < interval '0' then 'zero_subscription_retention is not negative'
        when topic.dead_retention < interval '0' then 'dead_retention is not negative'
        when topic.semantics = 'PUB_SUB' and topic.max_retention < greatest(topic.retention, topic.zero_subscription_retention) then
            format('max_retention (%s) is at least the longer of retention (%s) and zero_subscription_retention (%s): raise it, or lower the others',
                   justify_hours(topic.max_retention), justify_hours(topic.retention), justify_hours(topic.zero_subscription_retention))
        when topic.max_retention < interval '0' then 'max_retention is not negative'
        when topic.zombie_time <= interval '0' then 'zombie_time is positive'
        when topic.heartbeat_interval < interval '1 second' then 'heartbeat_interval is 1 second or more'
        when topic.heartbeat_timeout < 2 * topic.heartbeat_interval then
            format('heartbeat_timeout is at least twice heartbeat_interval (%s)', topic.heartbeat_interval)
        when topic.lease < interval '1 second' or topic.lease > interval '1 day' then 'lease goes from 1 second to 1 day'
        when topic.max_attempts not between 1 and 10000 then 'max_attempts goes from 1 to 10000'
        when topic.retry_initial < interval '0' then 'retry_initial is not negative'
        when topic.retry_max < topic.retry_initial then 'retry_max is not less than retry_initial'
        when topic.retry_factor not between 1 and 100 then 'retry_factor goes from 1 to 100'
        when topic.retry_jitter not between 0 and 1 then 'retry_jitter goes from 0 to 1'
        when topic.retention < interval '0' then 'retention is not negative'
        when topic.dedup_window <= interval '0' then 'dedup_window is positive'
        when topic.max_payload_bytes not between 1 and 67108864 then 'max_payload_bytes goes from 1 to 67108864 (64 MiB)'
    end;
    if _wrong is not null then
        perform postbus.refuse('PB402',
            case when topic.id = 0 then 'bad option of new topics' else format('bad option of topic %L', topic.name) end, _wrong);
    end if;
end $$;

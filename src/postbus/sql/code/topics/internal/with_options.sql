-- A topic's row with options changed. Refuses names and values that do not exist.
create or replace function postbus.with_options(topic postbus.topic, options jsonb) returns postbus.topic
language plpgsql
set search_path = pg_catalog, pg_temp as $$
declare
    _known   text[] := array['semantics', 'ordered', 'lease', 'max_attempts', 'retry_initial', 'retry_factor', 'retry_max',
                             'retry_jitter', 'retention', 'dedup_window', 'max_payload_bytes', 'notify', 'tracking', 'lanes',
                             'storage', 'segment_size', 'zero_subscription_retention', 'block_writes_on_zero_subscriptions',
                             'max_retention', 'dead_retention', 'zombie_time', 'heartbeat_interval', 'heartbeat_timeout',
                             'namespace', 'task'];
    _unknown text;
    _changed postbus.topic;
begin
    if jsonb_typeof(options) is distinct from 'object' then
        perform postbus.refuse('PB402', 'the options are not a JSON object', 'give {"option": value, ...}');
    end if;
    select option.name into _unknown from jsonb_object_keys(options) as option (name)
     where option.name <> all (_known) order by 1 limit 1;
    if _unknown is not null then
        perform postbus.refuse('PB402', format('a topic has no option %L', _unknown), 'its options are ' || array_to_string(_known, ', '));
    end if;
    select option.key into _unknown from jsonb_each(options) as option
     where option.value = 'null' and option.key not in ('namespace', 'task') order by 1 limit 1;
    if _unknown is not null then
        perform postbus.refuse('PB402', format('option %L is null', _unknown), 'give a value, or leave the option out');
    end if;
    if options ->> 'lanes' = 'named' then
        options := options || '{"lanes": 8, "named_lanes": true}';
    elsif options ? 'lanes' then
        options := options || '{"named_lanes": false}';
    end if;
    begin
        _changed := jsonb_populate_record(topic, options);
    exception when data_exception or syntax_error_or_access_rule_violation then
        perform postbus.refuse('PB402', format('bad option of topic %L: %s', topic.name, sqlerrm),
            'write durations like 30s, 5 minutes or 24h, and numbers, true and false without quotes');
    end;
    _changed.namespace := nullif(_changed.namespace, '');       -- null, or an empty text, removes the label
    _changed.task := nullif(_changed.task, '');
    if _changed.semantics = 'PUB_SUB' and topic.semantics <> 'PUB_SUB' then      -- other defaults than a queue's
        _changed.tracking := coalesce(_changed.tracking, 'REFERENCE_COUNTING');
        _changed.retention := case when options ? 'retention' then _changed.retention else interval '24 hours' end;
    end if;
    -- Shorter than retention only on request: otherwise a long retention would hold only while a group is subscribed.
    if not options ? 'zero_subscription_retention' and topic.zero_subscription_retention >= topic.retention then
        _changed.zero_subscription_retention := greatest(_changed.zero_subscription_retention, _changed.retention);
    end if;
    perform postbus.check_topic(_changed);
    return _changed;
end $$;

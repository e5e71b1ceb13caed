-- Sets how sweeping is done, for all processes: a preset and options. Options that are left out stay as they are.
--
--   interval                how often sweeps search for finished messages, and partitions that no group needs
--   batch_size              rows that are removed at a time
--   detection_interval      how often sweeps search for groups without heartbeats; at least five times per heartbeat_timeout
--   heartbeat_timeout       how long without a heartbeat makes a group DEAD: the default of new topics
--   subscription_retention  how long DEAD and CANCELLED subscriptions are kept
--   audit_retention         how long entries of the audit log are kept: at least 30 days, so that nobody can remove new entries; no
--                           preset changes it
--
-- Writes: sweep_setting, topic (the defaults); see note_change.
create or replace function postbus.set_sweeping(options jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _preset   text := coalesce(options ->> 'preset', 'as it is');
    _values   jsonb := case _preset
        when 'default' then '{"interval": "5 minutes", "batch_size": 10000, "detection_interval": "1 minute",
                              "heartbeat_timeout": "300 seconds", "subscription_retention": "30 days"}'
        when 'low_throughput' then '{"interval": "15 minutes", "batch_size": 5000, "detection_interval": "5 minutes",
                                     "heartbeat_timeout": "600 seconds", "subscription_retention": "30 days"}'
        when 'high_throughput' then '{"interval": "1 minute", "batch_size": 50000, "detection_interval": "1 minute",
                                      "heartbeat_timeout": "300 seconds", "subscription_retention": "7 days"}'
        when 'critical' then '{"interval": "5 minutes", "batch_size": 10000, "detection_interval": "2 minutes",
                               "heartbeat_timeout": "600 seconds", "subscription_retention": "90 days"}'
        when 'as it is' then '{}' end::jsonb;
    _setting  postbus.sweep_setting;
    _defaults postbus.topic;
    _wrong    text;
    _before   jsonb := (select to_jsonb(s) from postbus.sweeping() as s);
begin
    if jsonb_typeof(options) is distinct from 'object' then
        perform postbus.refuse('PB402', 'the options of sweeping are not a JSON object', 'give {"option": value, ...}');
    elsif _values is null then
        perform postbus.refuse('PB402', format('sweeping has no preset %L', _preset), 'use default, low_throughput, high_throughput or critical');
    end if;
    _values := _values || (options - 'preset');
    select option.key into _wrong from jsonb_each(_values) as option
     where option.value = 'null'
        or option.key not in ('interval', 'batch_size', 'detection_interval', 'heartbeat_timeout', 'subscription_retention', 'audit_retention')
     order by 1 limit 1;
    if _wrong is not null then
        perform postbus.refuse('PB402', format('sweeping has no option %L, or it is null', _wrong),
            'its options are preset, interval, batch_size, detection_interval, heartbeat_timeout, subscription_retention and audit_retention');
    end if;
    begin
        _setting := jsonb_populate_record((select s from postbus.sweep_setting s), _values - 'heartbeat_timeout');
    exception when data_exception then
        perform postbus.refuse('PB402', 'bad option of sweeping: ' || sqlerrm, 'write durations like 30s, 5 minutes or 30 days');
    end;
    _wrong := case
        when _setting.interval not between interval '5 seconds' and interval '1 day' then 'interval goes from 5 seconds to 1 day'
        when _setting.batch_size not between 1 and 1000000 then 'batch_size goes from 1 to 1000000'
        when _setting.detection_interval not between interval '5 seconds' and interval '1 hour' then
            'detection_interval goes from 5 seconds to 1 hour'
        when _setting.subscription_retention < interval '1 hour' then 'subscription_retention is 1 hour or more'
        when _setting.audit_retention not between interval '30 days' and interval '1000 years' then
            'audit_retention goes from 30 days to 1000 years' end;
    if _wrong is not null then
        perform postbus.refuse('PB402', 'bad option of sweeping', _wrong);
    end if;
    if _values ? 'heartbeat_timeout' then
        select * into _defaults from postbus.topic t where t.id = 0;
        _defaults := postbus.with_options(_defaults, jsonb_build_object('heartbeat_timeout', _values -> 'heartbeat_timeout'));
        update postbus.topic t set heartbeat_timeout = _defaults.heartbeat_timeout where t.id = 0;
    end if;
    update postbus.sweep_setting s
       set interval = _setting.interval, batch_size = _setting.batch_size, detection_interval = _setting.detection_interval,
           subscription_retention = _setting.subscription_retention, audit_retention = _setting.audit_retention;
    perform postbus.note_change('sweeping.set', _before, (select to_jsonb(s) from postbus.sweeping() as s));
end $$;

-- All options of a group's catch-up, by a preset and given options: as numbers, the latency in milliseconds. Refuses invalid
-- options.
--
--   batch_size      messages per read
--   max_messages    how many of the newest are worked through; null, the default: all
--   max_rate        messages per second, for the whole group; null: as fast as possible
--   target_latency  the p95 of its own statements above which it slows down
--   beside_from     up to this many messages come first and in order with new ones; more are worked through beside them
create or replace function postbus.catch_up_options(options jsonb) returns jsonb
language plpgsql as $$
declare
    _preset  text := coalesce(options ->> 'preset', 'default');
    _options jsonb := case _preset
        when 'conservative' then '{"batch_size": 5000, "max_rate": 10000, "target_latency": "5 ms"}'
        when 'default' then '{"batch_size": 10000, "max_rate": 50000, "target_latency": "10 ms"}'
        when 'aggressive' then '{"batch_size": 50000, "max_rate": 200000, "target_latency": "50 ms"}' end::jsonb;
    _wrong   text;
begin
    if options is null or jsonb_typeof(options) <> 'object' then
        perform postbus.refuse('PB402', 'the options of a catch-up are not a JSON object', 'give {"option": value, ...}');
    elsif pg_column_size(options) > 2000 then
        perform postbus.refuse('PB402', 'the options of a catch-up have more than 2000 bytes', 'write numbers and durations without spaces');
    elsif _options is null then
        perform postbus.refuse('PB402', format('a catch-up has no preset %L', _preset), 'use conservative, default or aggressive');
    end if;
    _options := jsonb_build_object('preset', _preset, 'max_messages', null, 'beside_from', 100000) || _options || options;
    select option.name into _wrong from jsonb_object_keys(_options) as option (name)
     where option.name not in ('preset', 'batch_size', 'max_messages', 'max_rate', 'target_latency', 'beside_from') order by 1 limit 1;
    if _wrong is not null then
        perform postbus.refuse('PB402', format('a catch-up has no option %L', _wrong),
            'its options are preset, batch_size, max_messages, max_rate, target_latency and beside_from');
    end if;
    begin
        _wrong := case
            when (_options ->> 'batch_size')::bigint between 1 and 1000000 is not true then 'batch_size goes from 1 to 1000000'
            when (_options ->> 'max_messages')::bigint < 0 then 'max_messages is not negative, or null for all'
            when (_options ->> 'max_rate')::double precision between 1e-9 and 1e15 is false
                then 'max_rate is positive, or null for as fast as it goes'
            when ((_options ->> 'target_latency')::interval > interval '0'
                  and (_options ->> 'target_latency')::interval <= interval '1 day') is not true
                then 'target_latency is a positive duration of up to 1 day'
            when (_options ->> 'beside_from')::bigint >= 0 is not true then 'beside_from is not negative' end;
    exception when data_exception then
        _wrong := sqlerrm;
    end;
    if _wrong is not null then
        perform postbus.refuse('PB402', 'bad option of a catch-up', _wrong);
    end if;
    return _options || jsonb_build_object(
        'batch_size', (_options ->> 'batch_size')::bigint,
        'max_messages', (_options ->> 'max_messages')::bigint,
        'max_rate', (_options ->> 'max_rate')::double precision,
        'target_latency', trim_scale(extract(epoch from (_options ->> 'target_latency')::interval) * 1000) || ' ms',
        'beside_from', (_options ->> 'beside_from')::bigint);
end $$;

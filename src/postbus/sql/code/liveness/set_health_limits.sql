-- Sets the limits beyond which groups are in trouble: all groups, those of a topic, a group on all topics, or a group on one topic.
-- Options that are left out stay as they are. 'off': no limit; null: the next less specific limit. See health_limits.
--
-- Writes: health_limit; see note_change.  Locks: its row.
create or replace function postbus.set_health_limits(options jsonb, topic text default null, group_name text default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _limit  postbus.health_limit;
    _one    record;
    _value  double precision;
    _before jsonb;
begin
    if jsonb_typeof(options) is distinct from 'object' then
        perform postbus.refuse('PB402', 'the health limits are not a JSON object', 'give {"limit": value, ...}');
    end if;
    insert into postbus.health_limit (topic, group_name) values (coalesce(set_health_limits.topic, ''), coalesce(set_health_limits.group_name, ''))
    on conflict do nothing;
    select * into _limit from postbus.health_limit l
     where l.topic = coalesce(set_health_limits.topic, '') and l.group_name = coalesce(set_health_limits.group_name, '') for update;
    _before := jsonb_strip_nulls(to_jsonb(_limit) - array['topic', 'group_name']);
    for _one in select option.key as name, option.value #>> '{}' as value from jsonb_each(options) as option order by 1 loop
        if _one.name not in ('failed_share', 'lag', 'lag_age', 'stopped_for') then
            perform postbus.refuse('PB402', format('there is no health limit %L', _one.name),
                'the limits are failed_share, lag, lag_age and stopped_for');
        end if;
        begin
            _value := case when _one.value = 'off' then 'infinity'
                           when _one.name in ('lag_age', 'stopped_for') then extract(epoch from _one.value::interval)
                           else _one.value::double precision end;
        exception when data_exception then
            _value := -1;
        end;
        if _value < 0 or _value = 'NaN' or _one.name = 'failed_share' and (_value = 0 or _value > 1 and _value < 'infinity') then
            perform postbus.refuse('PB402', format('the health limit %s cannot be %L', _one.name, _one.value), case _one.name
                when 'failed_share' then 'give a share above 0 and up to 1, such as 0.2, or off'
                when 'lag' then 'give a number of messages, or off'
                else 'give a duration such as 10 minutes, or off' end);
        end if;
        case _one.name
            when 'failed_share' then _limit.failed_share := _value;
            when 'lag' then _limit.lag := _value;
            when 'lag_age' then _limit.lag_seconds := _value;
            else _limit.stopped_seconds := _value;
        end case;
    end loop;
    update postbus.health_limit l
       set failed_share = _limit.failed_share, lag = _limit.lag, lag_seconds = _limit.lag_seconds, stopped_seconds = _limit.stopped_seconds
     where l.topic = _limit.topic and l.group_name = _limit.group_name;
    perform postbus.note_change('health.set', _before, jsonb_strip_nulls(to_jsonb(_limit) - array['topic', 'group_name']),
                                set_health_limits.topic, set_health_limits.group_name);
    delete from postbus.health_limit l
     where l.failed_share is null and l.lag is null and l.lag_seconds is null and l.stopped_seconds is null;
end $$;

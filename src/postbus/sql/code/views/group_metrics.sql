-- The counters and the speed of a group. handling_ms is the average time that a handler takes for a message; rate is that of the
-- last minute, in messages per second, computed from the ledger: see current_cursor.
create or replace function postbus.group_metrics(
    topic                 text,
    group_name            text,
    out processed         bigint,
    out failed            bigint,
    out filtered          bigint,
    out in_flight         bigint,
    out handling_ms       double precision,
    out rate              double precision,
    out lag               bigint,
    out pending           bigint,
    out oldest_pending_at timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _since timestamptz := clock_timestamp() - interval '1 minute';
    _group record;
begin
    select g.* into _group from postbus.groups g
     where g.topic = group_metrics.topic and g.group_name = group_metrics.group_name and g.state <> 'CANCELLED';
    if _group.subscription_id is null then
        perform postbus.refuse('PB406', format('group %L has no subscription to topic %L', group_name, topic),
            'list the groups of the topic: postbus groups list ' || topic);
    end if;
    processed := _group.processed;
    failed := _group.failed;
    filtered := _group.filtered;
    in_flight := _group.in_flight;
    lag := _group.lag;
    pending := _group.pending;
    oldest_pending_at := _group.oldest_pending_at;
    handling_ms := (select 1000 * sum(m.handling_seconds) / nullif(sum(m.processed + m.failed), 0)
                      from postbus.member m where m.subscription_id = _group.subscription_id);
    -- Since a minute ago, or since the group began: then there is no row before the first row of the ledger.
    rate := (select coalesce(sum(now.passed - coalesce(before.passed, 0)), 0)
                    / greatest(extract(epoch from clock_timestamp() - greatest(_since, _group.subscribed_at)), 1)
               from postbus.subscription part
               join postbus.current_cursor now on now.subscription_id = part.id and now.at >= _since
               left join lateral (select c.passed from postbus.cursor c
                                   where c.subscription_id = now.subscription_id and c.lane = now.lane and c.at < _since
                                   order by c.number desc limit 1) as before on true
              where part.id = _group.subscription_id or part.catch_up_of = _group.subscription_id);
end $$;

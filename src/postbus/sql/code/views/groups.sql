-- Every subscription of a group to a topic, with its progress and its lag. The sweep counts published messages, so lag may be some
-- seconds late; lag_seconds is the age of the oldest message ahead of the group. pending is the number of all messages left to do:
-- ahead of the group, in its history, and deferred.
--
-- healthy is false if an operator should look after the group, and problem says why: it is DEAD, near its heartbeat timeout (80 %),
-- or has made no progress for as long as that though messages wait; the sink that it relays to is away; or it fails, is behind, or
-- was stopped for longer than its health_limits allow. After a planned stop a group is healthy until then. PAUSED is healthy,
-- unless the group has waited for longer than its timeout for the queue that its topic was. healthy is null for CANCELLED groups.
create or replace view postbus.groups as
select t.name as topic, s.group_name, s.id as subscription_id, s.state, s.start, s.start_at, s.start_id, s.on_failure, s.subscribed_at,
       s.state_changed_at, s.seen_at, t.lanes, lanes.held as lanes_held, lanes.workers, progress.progressed_at,
       coalesce(members.processed, 0) as processed, coalesce(members.failed, 0) as failed, coalesce(members.filtered, 0) as filtered,
       case when lanes.held > 0 then coalesce(members.in_flight, 0) else 0 end + waiting.in_hand as in_flight, members.names as members,
       progress.passed, waiting.retrying, waiting.parked, dead.count as dead, coalesce(lost.messages, 0) as lost,
       before.messages as lag, extract(epoch from clock_timestamp() - before.oldest_at) as lag_seconds,
       t.heartbeat_timeout, extract(epoch from clock_timestamp() - s.seen_at)::double precision as heartbeat_age, s.missed as heartbeats_missed,
       history.status as catch_up, case when history.status = 'IN_PROGRESS' then history.messages end as catch_up_lag,
       case when s.state <> 'CANCELLED'
            then before.messages + waiting.retrying + waiting.parked + waiting.popped
                 + case when history.status = 'IN_PROGRESS' then history.messages else 0 end end as pending,
       before.oldest_at as oldest_pending_at,
       case when s.state <> 'CANCELLED' then health.trouble is null end as healthy, health.trouble[2] as problem, s.waits_for_queue,
       s.keys, s.scope_id, stop.at as stopped_at, stop.by as stopped_by, lost.at as lost_at,
       calls.handled as recently_handled, calls.failed as recently_failed, health.trouble[1] as problem_kind,
       away.sink, away.since as sink_away_since, away.error as sink_error
  from postbus.subscription s
  join postbus.topic t on t.id = s.topic_id
  left join lateral postbus.group_lag(s.id) as before on s.state <> 'CANCELLED'
 cross join lateral (select count(w.name) as held, array_agg(distinct w.name) filter (where w.name is not null) as workers
                       from postbus.lane l
                       left join postbus.worker w on w.name = l.holder and w.seen_at > clock_timestamp() - postbus.alive_for()
                      where l.subscription_id = s.id) as lanes
 cross join lateral (select sum(c.passed)::bigint as passed, max(c.at) as progressed_at
                       from postbus.current_cursor c where c.subscription_id = s.id) as progress
 cross join lateral (select sum(m.processed)::bigint as processed, sum(m.failed)::bigint as failed, sum(m.filtered)::bigint as filtered,
                            sum(m.in_flight)::bigint as in_flight, array_agg(m.name order by m.name) as names
                       from postbus.member m where m.subscription_id = s.id) as members
 cross join lateral (select count(*) filter (where not r.parked and r.token is null and (r.attempts > 0 or not r.buffered)) as retrying,
                            count(*) filter (where r.parked and (r.attempts > 0 or not r.buffered)) as parked, count(r.token) as popped,
                            count(*) filter (where r.token is not null and r.due_at > clock_timestamp()) as in_hand
                       from postbus.deferred r where r.subscription_id = s.id) as waiting
 cross join lateral (select count(*) as count from postbus.dead_letter d where d.topic_id = s.topic_id and d.subscription_id = s.id) as dead
 cross join lateral (select sum(l.messages)::bigint as messages, max(l.at) as at from postbus.loss l where l.subscription_id = s.id) as lost
  left join lateral (select u.status, u.total - u.processed as messages from postbus.catch_ups u
                      where u.group_subscription_id = s.id order by u.started_at desc limit 1) as history on true
 cross join lateral (select case when s.stopped_at >= s.seen_at and s.state in ('ACTIVE', 'DEAD') then s.stopped_at end as at,
                            case when s.stopped_at >= s.seen_at and s.state in ('ACTIVE', 'DEAD') then s.stopped_by end as by) as stop
 left join lateral (select a.sink, a.since, a.error from postbus.sinks_away a
                     where a.topic = t.name and a.group_name = s.group_name order by a.since limit 1) as away on true
 cross join lateral postbus.recent_calls(s.id) as calls
 cross join lateral postbus.health_limits(t.name, s.group_name) as limits
 cross join lateral (
    select case when s.waits_for_queue and s.state_changed_at < clock_timestamp() - t.heartbeat_timeout then
                    array['waits', format('it has been waiting for %s s for the messages left in the queue of its topic',
                                          round(extract(epoch from clock_timestamp() - s.state_changed_at)))]
                when extract(epoch from clock_timestamp() - stop.at) > limits.stopped_seconds then
                    array['stopped', format('stopped by %s %s ago, and nobody has worked for it since',
                                            stop.by, date_trunc('second', clock_timestamp() - stop.at))]
                when stop.at is not null then null
                when s.state = 'DEAD' then
                    array['dead', 'it is DEAD: nobody works for it, and messages are kept for dead_retention only']
                when s.state = 'ACTIVE' and s.seen_at < clock_timestamp() - t.heartbeat_timeout then
                    array['silent', format('beyond its heartbeat timeout: last heartbeat %s s ago, DEAD once a sweep has found that',
                                           round(extract(epoch from clock_timestamp() - s.seen_at)))]
                when s.state = 'ACTIVE' and s.seen_at < clock_timestamp() - 0.8 * t.heartbeat_timeout then
                    array['silent', format('near its heartbeat timeout: last heartbeat %s s ago, DEAD after %s s',
                                           round(extract(epoch from clock_timestamp() - s.seen_at)),
                                           round(extract(epoch from t.heartbeat_timeout)))]
                when away.since is not null then
                    array['sink', format('its sink %s has been away since %s: %s', away.sink, date_trunc('second', away.since), away.error)]
                when s.state = 'ACTIVE' and calls.failed >= 5
                     and calls.failed >= limits.failed_share * (calls.handled + calls.failed) then
                    array['failing', format('%s of %s calls failed in the last 5 minutes', calls.failed, calls.handled + calls.failed)]
                when s.state = 'ACTIVE'
                     and greatest(progress.progressed_at, s.state_changed_at, before.oldest_at) < clock_timestamp() - t.heartbeat_timeout
                     and before.oldest_at is not null then
                    array['stuck', format('no progress for %s s though messages wait',
                           round(extract(epoch from clock_timestamp() - greatest(progress.progressed_at, s.state_changed_at, before.oldest_at))))]
                when s.state = 'ACTIVE' and before.messages > limits.lag then
                    array['behind', format('%s messages behind, more than %s', before.messages, limits.lag)]
                when s.state = 'ACTIVE' and extract(epoch from clock_timestamp() - before.oldest_at) > limits.lag_seconds then
                    array['behind', format('%s s behind, more than %s',
                                           round(extract(epoch from clock_timestamp() - before.oldest_at)), limits.lag_seconds)]
           end as trouble) as health
 where s.catch_up_of is null;

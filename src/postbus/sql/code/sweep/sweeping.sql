-- The settings of sweeping, for all processes. heartbeat_timeout is the default of new topics.
create or replace function postbus.sweeping(
    out "interval"             interval,
    out batch_size             integer,
    out detection_interval     interval,
    out heartbeat_timeout      interval,
    out subscription_retention interval,
    out audit_retention        interval
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select s.interval, s.batch_size, s.detection_interval, t.heartbeat_timeout, s.subscription_retention, s.audit_retention
      from postbus.sweep_setting s join postbus.topic t on t.id = 0
$$;

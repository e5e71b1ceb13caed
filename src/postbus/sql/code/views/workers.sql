-- The processes that consume, and the time since the last heartbeat of each. is_alive: see alive_for.
create or replace view postbus.workers as
select w.name, w.host, w.pid, w.topics, w.started_at, w.seen_at, clock_timestamp() - w.seen_at as silent_for,
       w.seen_at > clock_timestamp() - postbus.alive_for() as is_alive
  from postbus.worker w;

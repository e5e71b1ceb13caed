-- The processes that consume, and how long ago each was heard of. One that is alive is heard of every 10 seconds.
create or replace view postbus.workers as
select w.name, w.host, w.pid, w.topics, w.started_at, w.seen_at, clock_timestamp() - w.seen_at as silent_for,
       clock_timestamp() - w.seen_at < interval '1 minute' as is_alive
  from postbus.worker w;

-- The processes that consume, and how long ago each was heard of. For is_alive see alive_since.
create or replace view postbus.workers as
select w.name, w.host, w.pid, w.topics, w.started_at, w.seen_at, clock_timestamp() - w.seen_at as silent_for,
       w.seen_at > postbus.alive_since(clock_timestamp()) as is_alive
  from postbus.worker w;

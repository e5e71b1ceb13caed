-- Tells that a relay has reached its sink again, or has ended.
--
-- Writes: sink_away.
create or replace function postbus.forget_sink_away(topic text, group_name text, process text) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    delete from postbus.sink_away known
     where known.topic = forget_sink_away.topic and known.group_name = coalesce(forget_sink_away.group_name, '')
       and known.process = forget_sink_away.process
$$;

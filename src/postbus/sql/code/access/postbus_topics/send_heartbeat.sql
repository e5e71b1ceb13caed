-- Notes that a group lives, in a topic that the caller was granted: see postbus.send_heartbeat.
--
-- Writes: see postbus.send_heartbeat.
create or replace function postbus_topics.send_heartbeat(topic text, group_name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_granted('consume', topic);
    perform postbus.send_heartbeat(group_name, topic);
end $$;

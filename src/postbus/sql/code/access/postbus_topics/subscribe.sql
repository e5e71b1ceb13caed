-- Subscribes a group to a topic that the caller was granted: see postbus.subscribe. A subscribed group stays as it is.
--
-- Writes: see postbus.subscribe.
create or replace function postbus_topics.subscribe(
    topic      text,
    group_name text,
    start      text default 'FROM_NOW',
    start_at   timestamptz default null,
    start_id   bigint default null
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_granted('consume', topic);
    perform postbus.subscribe(topic, group_name, start, start_at, start_id);
end $$;

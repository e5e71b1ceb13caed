-- Takes messages of a topic that the caller was granted, of a queue or for a group: see postbus.pop.
--
-- Writes: see postbus.pop.
create or replace function postbus_topics.pop(
    topic      text,
    group_name text default null,
    member     text default 'somebody',
    max_count  integer default 1,
    lease      interval default null,
    key        text default null,
    auto_ack   boolean default false,
    scan_floor text default null
) returns setof postbus.popped
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_granted('consume', topic);
    return query select * from postbus.pop(topic, group_name, member, max_count, lease, key, auto_ack, scan_floor);
end $$;

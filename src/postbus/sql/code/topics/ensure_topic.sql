-- Gives a topic a row with default options, unless it has one, so that it is listed and can be paused.
--
-- Writes: topic.
create or replace function postbus.ensure_topic(name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic postbus.topic := postbus.topic_options(name);
begin
    if _topic.name is null then
        _topic.name := name;
        _topic.created_at := clock_timestamp();
        insert into postbus.topic values (_topic.*) on conflict do nothing;
    end if;
end $$;

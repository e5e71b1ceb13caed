-- The row of a topic, locked. Refuses a topic that was never created or used.
--
-- Writes: topic, if the topic was only published to so far.  Locks: the topic's row.
create or replace function postbus.existing_topic(name text) returns postbus.topic
language plpgsql
set search_path = pg_catalog, pg_temp as $$
declare
    _topic postbus.topic := postbus.topic_options(name);
begin
    if _topic.name is null and exists (select from postbus.topic_seen s where s.topic_id = _topic.id) then
        perform postbus.ensure_topic(name);
    end if;
    select * into _topic from postbus.topic t where t.name = existing_topic.name for no key update;
    if _topic.id is null then
        perform postbus.refuse('PB404', format('there is no topic %L', name),
            'see postbus topics list, or create it: postbus topics create ' || name);
    end if;
    return _topic;
end $$;

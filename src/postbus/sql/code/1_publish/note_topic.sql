-- Remembers the name of a topic that is published to and has no row of its own, and tells
-- listeners of a topic that asked for NOTIFY in the transaction.
--
-- Writes: topic_seen, at the first use of a name.
create or replace function postbus.note_topic(topic postbus.topic, name text) returns void
language plpgsql as $$
begin
    if topic.name is null and not exists (select from postbus.topic_seen s where s.topic_id = topic.id) then
        insert into postbus.topic_seen (topic_id, name) values (topic.id, note_topic.name);
    end if;
    if topic.notify then
        perform pg_notify('postbus', topic.id::text);
    end if;
end $$;

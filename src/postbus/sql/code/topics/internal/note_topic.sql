-- Remembers the name of a topic that is published to and has no row.
--
-- Writes: topic_seen, at the first use of a name.
create or replace function postbus.note_topic(topic postbus.topic, name text) returns void
language plpgsql as $$
begin
    if topic.name is null and not exists (select from postbus.topic_seen s where s.topic_id = topic.id) then
        insert into postbus.topic_seen (topic_id, name) values (topic.id, note_topic.name);
    end if;
end $$;

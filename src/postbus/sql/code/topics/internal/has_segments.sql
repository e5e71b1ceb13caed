-- Whether the log has messages of a topic.
create or replace function postbus.has_segments(topic postbus.topic) returns boolean
language plpgsql as $$
begin
    return topic.storage_id is not null and exists (select from postbus.segment s where s.storage_id = topic.storage_id and s.topic_id = topic.id);
end $$;

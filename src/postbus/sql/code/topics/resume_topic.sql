-- Resumes a paused topic, and wakes its consumers.
--
-- Writes: topic; see note_action.
create or replace function postbus.resume_topic(name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic postbus.topic := postbus.existing_topic(name);
begin
    update postbus.topic t set paused_at = null where t.id = _topic.id and t.paused_at is not null;
    if found then
        perform postbus.note_action('topic.resume', name);
    end if;
    perform pg_notify('postbus', _topic.id::text);
end $$;

-- Pauses a topic: published messages wait, and nothing is claimed. Pausing twice changes nothing.
--
-- Writes: topic; see note_action.
create or replace function postbus.pause_topic(name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic postbus.topic := postbus.existing_topic(name);
begin
    if _topic.storage_id is not null then
        perform postbus.refuse('PB432', format('topic %L is PUB_SUB', name), 'pause its groups: postbus groups pause ' || name || ' GROUP');
    end if;
    update postbus.topic t set paused_at = clock_timestamp() where t.id = _topic.id and t.paused_at is null;
    if found then
        perform postbus.note_action('topic.pause', name);
    end if;
end $$;

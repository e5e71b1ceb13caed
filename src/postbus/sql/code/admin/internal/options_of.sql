-- The options of a topic, for the audit log.
create or replace function postbus.options_of(topic postbus.topic) returns jsonb
language sql stable as $$
    select to_jsonb(topic) - array['id', 'name', 'created_at', 'paused_at', 'storage_id']
$$;

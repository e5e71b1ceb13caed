-- Changes options of a topic.
--
-- Writes: topic.  Locks: the topic's row.
create or replace function postbus.set_topic(name text, options jsonb) returns postbus.topic
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _before postbus.topic := postbus.existing_topic(name);
    _after  postbus.topic := postbus.with_options(_before, options);
begin
    if _after.ordered <> _before.ordered then
        perform postbus.check_idle(_before);
    end if;
    update postbus.topic t
       set semantics = _after.semantics, ordered = _after.ordered, lease = _after.lease, max_attempts = _after.max_attempts,
           retry_initial = _after.retry_initial, retry_factor = _after.retry_factor, retry_max = _after.retry_max,
           retry_jitter = _after.retry_jitter, retention = _after.retention, dedup_window = _after.dedup_window,
           max_payload_bytes = _after.max_payload_bytes, notify = _after.notify
     where t.id = _before.id;
    return _after;
end $$;

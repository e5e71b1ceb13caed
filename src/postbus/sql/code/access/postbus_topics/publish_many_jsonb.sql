-- Publishes many JSON values to a topic that the caller was granted: see postbus.publish_many(text, jsonb[], ...).
--
-- Writes: see postbus.publish_many.
create or replace function postbus_topics.publish_many(
    topic           text,
    payloads        jsonb[],
    keys            text[] default null,
    headers         jsonb[] default null,
    priorities      integer[] default null,
    delays          interval[] default null,
    deliver_ats     timestamptz[] default null,
    dedup_keys      text[] default null,
    correlation_ids text[] default null
) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_granted('publish', topic);
    return postbus.publish_many(topic, payloads, keys, headers, priorities, delays, deliver_ats, dedup_keys, correlation_ids);
end $$;

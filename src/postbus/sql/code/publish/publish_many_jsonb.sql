-- Publishes many JSON values to one topic: see publish_many(text, bytea[], ...).
create or replace function postbus.publish_many(
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
language sql
return postbus.publish_many(
    topic, array(select convert_to(payload::text, 'UTF8') from unnest(payloads) with ordinality as one (payload, n) order by n),
    keys, headers, priorities, delays, deliver_ats, dedup_keys, correlation_ids, null, 'application/json');

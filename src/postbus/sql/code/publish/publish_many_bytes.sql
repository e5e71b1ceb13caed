-- Publishes many messages to one topic in the caller's transaction, and returns their ids in order.
--
-- The arrays other than payloads are null, or as long as payloads. A null element stands for the default of publish.
--
-- Writes: queued and delayed; dedup; topic_seen.  Locks: none, but see reserve_dedup.
create or replace function postbus.publish_many(
    topic           text,
    payloads        bytea[],
    keys            text[] default null,
    headers         jsonb[] default null,
    priorities      integer[] default null,
    delays          interval[] default null,
    deliver_ats     timestamptz[] default null,
    dedup_keys      text[] default null,
    correlation_ids text[] default null,
    content_types   text[] default null,
    content_type    text default 'application/octet-stream'
) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic   postbus.topic := postbus.topic_options(topic);
    _id      bigint := _topic.id;           -- of the topic; a field of a record is slow to read for each row
    _ordered boolean := _topic.ordered;
    _count   integer := coalesce(cardinality(payloads), 0);
    _now     timestamptz := clock_timestamp();
    _type    text := coalesce(content_type, 'application/octet-stream');
    _plain   boolean := num_nonnulls(keys, headers, priorities, delays, deliver_ats, dedup_keys, correlation_ids, content_types) = 0;
    _ids     bigint[];
begin
    if _count = 0 then
        return array[]::bigint[];
    elsif not postbus.is_content_type(_type) then
        perform postbus.refuse_content_type(_type);
    end if;
    if not _plain and exists (
        select from unnest(array[cardinality(keys), cardinality(headers), cardinality(priorities), cardinality(delays),
            cardinality(deliver_ats), cardinality(dedup_keys), cardinality(correlation_ids), cardinality(content_types)]) as given (length)
         where given.length <> _count
    ) then
        perform postbus.refuse('PB402', 'an array has another length than payloads', 'give one element per payload, or null instead of the array');
    end if;

    if dedup_keys is not null then      -- one by one: each message may be a duplicate of the one before
        select array_agg(postbus.publish(
                   topic, one.payload, one.key, one.headers, coalesce(one.priority, 4), one.delay, one.deliver_at,
                   one.dedup_key, one.correlation_id, coalesce(one.content_type, publish_many.content_type)) order by one.n)
          into _ids
          from unnest(payloads, keys, publish_many.headers, priorities, delays, deliver_ats, dedup_keys, correlation_ids, content_types)
               with ordinality as one (payload, key, headers, priority, delay, deliver_at, dedup_key, correlation_id, content_type, n);
        return _ids;
    end if;

    -- Only messages that may be invalid are checked one by one; often it is plain that there are none.
    -- (unnest in the select list, unlike unnest in from, does not store its rows first.)
    if not _plain or pg_column_size(payloads) > _topic.max_payload_bytes or array_position(payloads, null) is not null
       or _topic.ordered or _topic.named_lanes
    then
        perform postbus.check_message(_topic, length(one.payload), one.key, one.headers, coalesce(one.priority, 4),
                                      one.delay, one.deliver_at, null, one.correlation_id, one.content_type)
           from (select unnest(payloads) as payload, unnest(keys) as key, unnest(publish_many.headers) as headers,
                        unnest(priorities) as priority, unnest(delays) as delay, unnest(deliver_ats) as deliver_at,
                        unnest(correlation_ids) as correlation_id, unnest(content_types) as content_type) as one
          where (one.payload is null or length(one.payload) > _topic.max_payload_bytes)
             or (one.priority is not null and one.priority not between 0 and 9)
             or (one.priority <> 4 and _topic.storage_id is not null)
             or one.headers is not null or one.delay is not null or one.deliver_at is not null
             or octet_length(one.key) > 1000 or length(one.correlation_id) > 500 or not postbus.is_content_type(one.content_type)
             or ((_topic.ordered or _topic.named_lanes) and one.key is null);
    end if;
    if _topic.name is null then
        perform postbus.note_topic(_topic, topic);
    end if;
    perform postbus.wake_on_commit(_id, _topic.notify);

    if _topic.storage_id is not null then
        return postbus.append_many(_topic, _now, _type, payloads, keys, headers, correlation_ids, content_types);
    end if;
    _ids := postbus.new_ids(_count);
    if _plain then          -- as in most large batches: each column that is not read saves time
        insert into postbus.queued (topic_id, id, published_at, priority, ordered, content_type, payload)
        select _id, one.id, _now, 4, _ordered, _type, one.payload
          from (select unnest(_ids) as id, unnest(payloads) as payload) as one;
        return _ids;
    elsif delays is null and deliver_ats is null then
        insert into postbus.queued (topic_id, id, published_at, priority, ordered, key, correlation_id, content_type, headers, payload)
        select _id, one.id, _now, coalesce(one.priority, 4), _ordered, one.key, one.correlation_id,
               coalesce(one.content_type, _type), one.headers, one.payload
          from (select unnest(_ids) as id, unnest(payloads) as payload, unnest(keys) as key,
                       unnest(publish_many.headers) as headers, unnest(priorities) as priority,
                       unnest(correlation_ids) as correlation_id, unnest(content_types) as content_type) as one;
        return _ids;
    end if;

    with one as materialized (
        select given.*, coalesce(given.deliver_at, _now + given.delay, _now) as due_at
          from unnest(_ids, payloads, keys, publish_many.headers, priorities, delays, deliver_ats, correlation_ids, content_types)
               as given (id, payload, key, headers, priority, delay, deliver_at, correlation_id, content_type)
    ), later_due as (
        insert into postbus.delayed (topic_id, id, due_at, published_at, priority, ordered, key, correlation_id, content_type, headers, payload)
        select _id, one.id, one.due_at, _now, coalesce(one.priority, 4), _ordered, one.key, one.correlation_id,
               coalesce(one.content_type, _type), one.headers, one.payload
          from one where one.due_at > _now
    )
    insert into postbus.queued (topic_id, id, published_at, priority, ordered, key, correlation_id, content_type, headers, payload)
    select _id, one.id, _now, coalesce(one.priority, 4), _ordered, one.key, one.correlation_id,
           coalesce(one.content_type, _type), one.headers, one.payload
      from one where one.due_at <= _now;
    return _ids;
end $$;

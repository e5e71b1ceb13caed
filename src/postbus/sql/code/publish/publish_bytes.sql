-- Publishes one message in the caller's transaction, and returns its id.
--
-- If a deduplication key was used before within the topic's window, nothing is published, and the id of the message published
-- first is returned.
--
-- Writes: queued or delayed; dedup; topic_seen.  Locks: none, but see reserve_dedup.
create or replace function postbus.publish(
    topic          text,
    payload        bytea,
    key            text default null,
    headers        jsonb default null,
    priority       integer default 4,
    delay          interval default null,
    deliver_at     timestamptz default null,
    dedup_key      text default null,
    correlation_id text default null,
    content_type   text default 'application/octet-stream'
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _plain  record;                 -- the topic, for a message without options
    _topic  postbus.topic;
    _now    timestamptz := clock_timestamp();
    _due_at timestamptz;
    _number bigint;
    _id     bigint;
    _is_new boolean;
    _woken  text;
begin
    -- Most messages have no options: this is the hottest path there is, and each expression costs time once per transaction.
    select t.id, t.storage_id, t.lanes, t.ordered, t.notify into _plain
      from postbus.topic t
     where t.id = postbus.topic_id(publish.topic) and t.name = publish.topic and not t.block_writes_on_zero_subscriptions
       and length(publish.payload) <= t.max_payload_bytes and publish.priority = 4
       and num_nonnulls(publish.headers, publish.delay, publish.deliver_at, publish.dedup_key) = 0
       and (publish.correlation_id is null or length(publish.correlation_id) <= 500)
       and (publish.content_type is null or postbus.is_content_type(publish.content_type))
       and case when publish.key is null then not (t.ordered or t.named_lanes) else length(publish.key) <= 500 end;
    if found then
        _woken := postbus.wake_on_commit(_plain.id, _plain.notify);
        if _plain.storage_id is not null then
            return 1024 * postbus.append_segment(
                _plain.storage_id, _plain.id, _plain.lanes, postbus.lane_of(key, _plain.lanes), _now,
                coalesce(content_type, 'application/octet-stream'), null, case when key is not null then array[key] end,
                case when correlation_id is not null then array[correlation_id] end, null, array[payload], length(payload));
        end if;
        insert into postbus.queued (topic_id, id, published_at, priority, ordered, key, correlation_id, content_type, payload)
        values (_plain.id, nextval('postbus.message_id'), _now, 4, _plain.ordered, publish.key, publish.correlation_id,
                coalesce(publish.content_type, 'application/octet-stream'), publish.payload)
        returning id into _id;
        return _id;
    end if;
    _topic := postbus.topic_options(topic);
    perform postbus.check_message(_topic, length(payload), key, headers, priority, delay, deliver_at, dedup_key, correlation_id, content_type);
    _woken := postbus.wake_on_commit(_topic.id, _topic.notify);
    if _topic.storage_id is not null then
        if _topic.block_writes_on_zero_subscriptions then
            perform postbus.check_subscribed(_topic);
        end if;
        if dedup_key is not null then
            perform pg_current_xact_id();       -- before the number: see append_segment
            _number := nextval('postbus.segment_number');
            select message_id, is_new into _id, _is_new from postbus.reserve_dedup(_topic, dedup_key, _now, _number * 1024);
            if not _is_new then
                return _id;
            end if;
        end if;
        return 1024 * postbus.append_segment(
            _topic.storage_id, _topic.id, _topic.lanes, postbus.lane_of(key, _topic.lanes), _now,
            coalesce(content_type, 'application/octet-stream'), null, case when key is not null then array[key] end,
            case when correlation_id is not null then array[correlation_id] end, case when headers is not null then array[headers] end,
            array[payload], length(payload), _number);
    end if;
    _due_at := coalesce(deliver_at, _now + delay);
    if _topic.name is null then
        perform postbus.note_topic(_topic, topic);
    end if;
    if dedup_key is not null then
        select message_id, is_new into _id, _is_new from postbus.reserve_dedup(_topic, dedup_key, _now, nextval('postbus.message_id'));
        if not _is_new then
            return _id;
        end if;
    else
        _id := nextval('postbus.message_id');
    end if;
    if _due_at > _now then
        insert into postbus.delayed (topic_id, id, due_at, published_at, priority, ordered, key, correlation_id, content_type, headers, payload)
        values (_topic.id, _id, _due_at, _now, publish.priority, _topic.ordered, publish.key, publish.correlation_id,
                coalesce(publish.content_type, 'application/octet-stream'), publish.headers, publish.payload);
    else
        insert into postbus.queued (topic_id, id, published_at, priority, ordered, key, correlation_id, content_type, headers, payload)
        values (_topic.id, _id, _now, publish.priority, _topic.ordered, publish.key, publish.correlation_id,
                coalesce(publish.content_type, 'application/octet-stream'), publish.headers, publish.payload);
    end if;
    return _id;
end $$;

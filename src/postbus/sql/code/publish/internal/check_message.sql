-- Refuses a message that cannot be published, because of its size, priority, delay, headers or key.
create or replace function postbus.check_message(
    topic      postbus.topic,
    size       integer,
    key        text,
    headers    jsonb,
    priority   integer,
    delay      interval,
    deliver_at timestamptz,
    dedup_key  text,
    correlation_id text default null,
    content_type   text default null
) returns void
language plpgsql as $$
begin
    if size is null then
        perform postbus.refuse('PB410', 'the payload is null', 'publish the JSON value null as ''null''::jsonb');
    elsif size > topic.max_payload_bytes then
        perform postbus.refuse('PB411',
            format('the payload has %s bytes, the topic accepts %s', size, topic.max_payload_bytes),
            'send a reference to the data, or raise max_payload_bytes of the topic');
    end if;
    if priority is null or priority not between 0 and 9 then
        perform postbus.refuse('PB402', format('priority %s is out of range', coalesce(priority::text, 'null')),
            'a priority goes from 0 (last) to 9 (first); 4 is usual');
    end if;
    if topic.semantics = 'PUB_SUB' and (priority <> 4 or delay is not null or deliver_at is not null) then
        perform postbus.refuse('PB402', format('topic %L is PUB_SUB: it has no priorities, delays or schedules', topic.name),
            'leave out priority, delay and deliver_at, or use a QUEUE topic');
    end if;
    if delay is not null and deliver_at is not null then
        perform postbus.refuse('PB402', 'delay and deliver_at are both given', 'give one of them');
    elsif delay < interval '0' or delay > interval '1000 years' then
        perform postbus.check_delay(delay);
    elsif not postbus.is_a_time(deliver_at) then
        perform postbus.refuse('PB402', format('deliver_at is %s', deliver_at), 'give a point in time between the years 1 and 9999');
    end if;
    if headers is not null and (
        jsonb_typeof(headers) <> 'object'
        or exists (select from jsonb_each(headers) as header where jsonb_typeof(header.value) <> 'string')
    ) then
        perform postbus.refuse('PB402', 'headers are not an object of strings', 'give {"name": "text", ...} or nothing');
    elsif (pg_column_size(headers) > 65536 or pg_column_compression(headers) is not null) and postbus.headers_bytes(headers) > 65536 then
        perform postbus.refuse('PB402', format('the headers have %s bytes, more than 65536', postbus.headers_bytes(headers)),
            'put the data into the payload');
    elsif headers ? 'event-id' and not postbus.is_event_id(headers ->> 'event-id') then
        perform postbus.refuse('PB402', format('header event-id %L is not an identity', left(headers ->> 'event-id', 220)),
            'give 1 to 200 printable ASCII characters, such as a UUID, or leave the header out: the message gets an event id');
    end if;
    if topic.ordered and key is null then
        perform postbus.refuse('PB402', 'a message of an ordered topic needs a key', 'give a key: order is kept for messages with the same key');
    elsif topic.named_lanes and key is null then
        perform postbus.refuse('PB402', format('a message of topic %L needs a key', topic.name), 'give a key: it names the lane');
    end if;
    -- An index entry has room for about 2700 bytes.
    if length(key) > 1000 or octet_length(key) > 2000 then
        perform postbus.refuse('PB402', 'key has more than 1000 characters or 2000 bytes', 'use a shorter key, or a hash of it');
    elsif length(dedup_key) > 1000 or octet_length(dedup_key) > 2000 then
        perform postbus.refuse('PB402', 'dedup_key has more than 1000 characters or 2000 bytes', 'use a shorter dedup_key, or a hash of it');
    elsif length(correlation_id) > 500 then     -- without a limit many of them would make a row too large: see append_many
        perform postbus.refuse('PB402', 'correlation_id has more than 500 characters', 'use a shorter one, or its hash');
    elsif not postbus.is_content_type(content_type) then
        perform postbus.refuse_content_type(content_type);
    end if;
end $$;

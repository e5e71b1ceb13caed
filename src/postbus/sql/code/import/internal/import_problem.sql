-- Why a message of another outbox cannot be imported into a topic, or null: the rules of check_message, as a text for each
-- message, so that one invalid message does not stop the import of others.
create or replace function postbus.import_problem(
    topic          postbus.topic,
    payload        bytea,
    key            text,
    headers        jsonb,
    correlation_id text
) returns text
language sql stable as $$
    select case
        when payload is null then 'the message has no payload'
        when length(payload) > (topic).max_payload_bytes then
            format('the payload has %s bytes, the topic accepts %s', length(payload), (topic).max_payload_bytes)
        when jsonb_typeof(headers) <> 'object' then 'headers are not an object'
        when headers ? 'event-id' and not postbus.is_event_id(headers ->> 'event-id') then
            'header event-id is not an identity: 1 to 200 printable ASCII characters'
        when (pg_column_size(headers) > 65536 or pg_column_compression(headers) is not null) and postbus.headers_bytes(headers) > 65536 then
            format('the headers have %s bytes, more than 65536', postbus.headers_bytes(headers))
        when length(correlation_id) > 500 then 'correlation_id has more than 500 characters'
        when (topic).ordered and key is null then 'a message of an ordered topic needs a key'
        when length(key) > 1000 or octet_length(key) > 2000 then 'key has more than 1000 characters or 2000 bytes'
    end
$$;

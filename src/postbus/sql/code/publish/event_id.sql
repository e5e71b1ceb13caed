-- The event id of a message: the same on every path that the message takes, and no other message in the world has it.
--
-- A message that came from elsewhere has it in its header event-id. Otherwise it is a UUID (version 8), a hash of where and when
-- the message was published. The time is part of it because a server that loses its last commits, or is restored to an earlier
-- state, hands out the same ids again. Python's Message.event_id computes the same.
create or replace function postbus.event_id(
    topic        text,
    id           bigint,
    published_at timestamptz,
    headers      jsonb default null,
    source       uuid default postbus.source()
) returns text
language plpgsql stable parallel safe
set search_path = pg_catalog, pg_temp as $$
declare
    _hash text;
begin
    if headers is not null and postbus.is_event_id(headers ->> 'event-id') then
        return headers ->> 'event-id';
    end if;
    _hash := encode(sha256(convert_to(
        source || ':' || topic || ':' || id || ':' || (extract(epoch from published_at) * 1000000)::bigint, 'UTF8')), 'hex');
    return substr(_hash, 1, 8) || '-' || substr(_hash, 9, 4) || '-8' || substr(_hash, 14, 3) || '-'
        || translate(substr(_hash, 17, 1), '0123456789abcdef', '89ab89ab89ab89ab') || substr(_hash, 18, 3) || '-' || substr(_hash, 21, 12);
end $$;

-- A page of the log of a topic, in the order of the log: up to max_count messages after a position; or with newest those before
-- it, the last one first. The page ends when payloads, keys and headers together exceed max_bytes, but has at least one message. A
-- row of nulls at the end says that there are more.
--
-- Reads nothing beyond the page. Without payloads these are null, and not counted.
create or replace function postbus.log_page(
    topic         text,
    from_sequence bigint,
    from_index    integer,
    max_count     integer,
    max_bytes     bigint,
    newest        boolean default false,
    payloads      boolean default true,
    after_id      bigint default 0,
    out id             bigint,
    out lane           integer,
    out sequence       bigint,
    out index          integer,
    out published_at   timestamptz,
    out key            text,
    out correlation_id text,
    out content_type   text,
    out headers        jsonb,
    out payload        bytea,
    out event_id       text
) returns setof record
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic    postbus.topic := postbus.topic_options(topic);
    _source   uuid := postbus.source();
    _segments refcursor;
    _segment  record;
    _payloads bytea[];
    _size     bigint;
    _bytes    bigint := 0;
    _count    integer := 0;
begin
    if _topic.storage_id is null then
        return;
    end if;
    if newest then
        open _segments for
            select s.sequence, s.lane, s.count, s.in_lines, s.published_at, s.keys, s.correlation_ids, s.content_type, s.content_types,
                   s.headers, case when log_page.payloads then s.payloads end as payloads
              from postbus.segment s
             where s.storage_id = _topic.storage_id and s.topic_id = _topic.id and s.sequence <= from_sequence
             order by s.sequence desc;
    else
        open _segments for
            select s.sequence, s.lane, s.count, s.in_lines, s.published_at, s.keys, s.correlation_ids, s.content_type, s.content_types,
                   s.headers, case when log_page.payloads then s.payloads end as payloads
              from postbus.segment s
             where s.storage_id = _topic.storage_id and s.topic_id = _topic.id and s.sequence >= from_sequence
               and postbus.first_id(s.sequence) + s.count - 1 > after_id
             order by s.sequence;
    end if;
    loop
        fetch _segments into _segment;
        exit when not found;
        _payloads := case when log_page.payloads then postbus.payloads_of(_segment.payloads, _segment.count, _segment.in_lines) end;
        for _offset in 0 .. _segment.count - 1 loop
            index := case when newest then _segment.count - 1 - _offset else _offset end;
            id := postbus.first_id(_segment.sequence) + index;
            continue when id <= after_id
                       or _segment.sequence = from_sequence
                          and case when newest then index >= from_index else index <= from_index end;
            sequence := _segment.sequence;
            lane := _segment.lane;
            published_at := _segment.published_at;
            key := _segment.keys[index + 1];
            correlation_id := _segment.correlation_ids[index + 1];
            content_type := coalesce(_segment.content_types[index + 1], _segment.content_type);
            headers := _segment.headers[index + 1];
            payload := _payloads[index + 1];
            event_id := postbus.event_id(topic, id, published_at, headers, _source);
            _size := coalesce(octet_length(payload), 0) + coalesce(octet_length(headers::text), 0) + coalesce(octet_length(key), 0);
            if _count = max_count or (_count > 0 and _bytes + _size > max_bytes) then
                id := null; lane := null; sequence := null; index := null; published_at := null; key := null; correlation_id := null;
                content_type := null; headers := null; payload := null; event_id := null;
                return next;
                return;
            end if;
            _count := _count + 1;
            _bytes := _bytes + _size;
            return next;
        end loop;
    end loop;
end $$;

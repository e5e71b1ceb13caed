-- Messages ahead of a group in a lane, as the log has them: one row for each id, in the order of the ids. All columns but the
-- sequence are null if the log has no such message at the given sequence, if the segment is one of another topic or lane, or if the
-- group's cursor is past the message.
--
-- Segments of shared log storages are read by a query whose plan is kept. A partition that the plan does not know because it is
-- new, or that belongs to one topic alone, is read by its name.
create or replace function postbus.messages_ahead(
    subscription_id bigint,
    lane            integer,
    topic           postbus.topic,
    ids             bigint[],
    sequences       bigint[]
) returns table (
    id             bigint,
    sequence       bigint,
    published_at   timestamptz,
    key            text,
    correlation_id text,
    content_type   text,
    headers        jsonb,
    payload        bytea
)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
    _cursor   postbus.log_cursor;
    _segment  record;
    _first    integer;          -- the first message of the segment that is ahead of the group
    _payloads bytea[];
    _lines    text[];           -- the payloads, if several of the segment's lines are wanted
    _at       integer;
begin
    select (c.cursor).* into _cursor from postbus.cursor c
     where c.subscription_id = messages_ahead.subscription_id and c.lane = messages_ahead.lane order by c.number desc limit 1;
    for _n in 1 .. coalesce(cardinality(ids), 0) loop
        if sequences[_n] is distinct from messages_ahead.sequence or _n = 1 then
            messages_ahead.sequence := sequences[_n];
            select s.sequence, s.txid, s.count, s.published_at, s.content_type, s.content_types, s.keys, s.correlation_ids, s.headers,
                   s.payloads, s.in_lines
              into _segment
              from postbus.segment_shared s
             where topic.storage = 'shared' and s.storage_id = topic.storage_id and s.topic_id = topic.id
               and s.sequence = messages_ahead.sequence and s.lane = messages_ahead.lane;
            if _segment.sequence is null then
                begin
                    execute format(
                        'select s.sequence, s.txid, s.count, s.published_at, s.content_type, s.content_types, s.keys, s.correlation_ids,
                                s.headers, s.payloads, s.in_lines
                           from postbus.%I s where s.topic_id = $1 and s.sequence = $2 and s.lane = $3',
                        postbus.partition_name(topic.storage_id, (messages_ahead.sequence >> 43)::integer))
                       into _segment using topic.id, messages_ahead.sequence, messages_ahead.lane;
                exception when undefined_table then
                    null;
                end;
            end if;
            _first := _segment.count - postbus.unseen_in_segment(_cursor, _segment.sequence, _segment.txid, _segment.count, _segment.published_at);
            _payloads := _segment.payloads;
            _lines := case when _segment.in_lines and sequences[_n + 1] = messages_ahead.sequence then postbus.text_lines(_payloads[1]) end;
        end if;
        id := ids[_n];
        _at := (id & 1023)::integer;
        if (id & -1024 = postbus.first_id(_segment.sequence) and _at >= _first and _at < _segment.count) is not true then
            id := null;
            published_at := null;
            key := null;
            correlation_id := null;
            content_type := null;
            headers := null;
            payload := null;
        else
            _at := _at + 1;
            published_at := _segment.published_at;
            key := _segment.keys[_at];
            correlation_id := _segment.correlation_ids[_at];
            content_type := coalesce(_segment.content_types[_at], _segment.content_type);
            headers := _segment.headers[_at];
            payload := case when _segment.in_lines is not true then _payloads[_at]
                            when _lines is not null then convert_to(coalesce(_lines[_at], ''), 'UTF8')
                            else postbus.line_at(_payloads[1], _at) end;
        end if;
        return next;
    end loop;
end $$;

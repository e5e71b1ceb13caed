-- Appends many messages to the log, and returns their ids in order. Messages of one lane share segments.
--
-- A segment has at most 16 MiB, or one message. pg_dump writes a row as text, in which a bytea takes twice its size, and other
-- text up to four times its size, and such a row must stay below 1 GB. The size of an array in memory is known at once.
--
-- Writes: see append_segment.
create or replace function postbus.append_many(
    topic           postbus.topic,
    published_at    timestamptz,
    content_type    text,
    payloads        bytea[],
    keys            text[],
    headers         jsonb[],
    correlation_ids text[],
    content_types   text[]
) returns bigint[]
language plpgsql as $$
declare
    _size   integer := topic.segment_size;
    _ids    bigint[] := array[]::bigint[];
    _half   integer := cardinality(payloads) / 2;
    _number bigint;
    _part   record;
begin
    if _half > 0 and pg_column_size(payloads) + coalesce(pg_column_size(keys), 0) + coalesce(pg_column_size(headers), 0)
                     + coalesce(pg_column_size(correlation_ids), 0) + coalesce(pg_column_size(content_types), 0) > 16777216 then
        return postbus.append_many(topic, published_at, content_type, payloads[:_half], keys[:_half], headers[:_half],
                                   correlation_ids[:_half], content_types[:_half])
            || postbus.append_many(topic, published_at, content_type, payloads[_half + 1:], keys[_half + 1:], headers[_half + 1:],
                                   correlation_ids[_half + 1:], content_types[_half + 1:]);
    end if;
    if topic.block_writes_on_zero_subscriptions then
        perform postbus.check_subscribed(topic);
    end if;
    if keys is null and cardinality(payloads) <= _size then
        _number := postbus.append_segment(topic.storage_id, topic.id, topic.lanes, null, published_at, content_type, content_types, null,
                                          correlation_ids, headers, payloads, pg_column_size(payloads));
        return array(select _number * 1024 + i from generate_series(0, cardinality(payloads) - 1) as i);
    elsif keys is null then
        for _from in 1 .. cardinality(payloads) by _size loop
            _number := postbus.append_segment(
                topic.storage_id, topic.id, topic.lanes, null, published_at, content_type, content_types[_from:_from + _size - 1], null,
                correlation_ids[_from:_from + _size - 1], headers[_from:_from + _size - 1], payloads[_from:_from + _size - 1],
                (select sum(length(payload)) from unnest(payloads[_from:_from + _size - 1]) as payload));
            _ids := _ids || array(select _number * 1024 + i from generate_series(0, least(_size, cardinality(payloads) - _from + 1) - 1) as i);
        end loop;
        return _ids;
    end if;

    _ids := array_fill(null::bigint, array[cardinality(payloads)]);
    for _part in
        select placed.lane, array_agg(placed.n order by placed.n) as positions, sum(length(placed.payload)) as bytes,
               array_agg(placed.payload order by placed.n) as payloads, array_agg(placed.key order by placed.n) as keys,
               array_agg(placed.headers order by placed.n) as headers,
               array_agg(placed.correlation_id order by placed.n) as correlation_ids,
               array_agg(placed.content_type order by placed.n) as content_types
          from (select one.*, (row_number() over (partition by one.lane order by one.n) - 1) / _size as part
                  from (select given.*, case when given.key is null then 0 else postbus.lane_of(given.key, topic.lanes) end as lane
                          from unnest(append_many.payloads, append_many.keys, append_many.headers, append_many.correlation_ids,
                                      append_many.content_types)
                               with ordinality as given (payload, key, headers, correlation_id, content_type, n)) as one) as placed
         group by placed.lane, placed.part
         order by min(placed.n)
    loop
        _number := postbus.append_segment(
            topic.storage_id, topic.id, topic.lanes, _part.lane, published_at, content_type,
            case when content_types is not null then _part.content_types end, _part.keys,
            case when correlation_ids is not null then _part.correlation_ids end,
            case when append_many.headers is not null then _part.headers end, _part.payloads, _part.bytes);
        for _i in 1 .. cardinality(_part.positions) loop
            _ids[_part.positions[_i]] := _number * 1024 + _i - 1;
        end loop;
    end loop;
    return _ids;
end $$;

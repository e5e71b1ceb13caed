-- Publishes many messages without options, each a line of `lines`; returns their ids in order. For JSON, which has no line
-- breaks where its encoder adds none. `count` says how many lines there are; left out, they are counted, without empty
-- ones at the end.
--
-- One value is quicker to send than an array. A log keeps it as it is: nobody has to take it apart, neither here nor
-- before it is decoded.
--
-- Writes: queued; topic_seen; see append_segment and publish_many.
create or replace function postbus.publish_lines(
    topic        text,
    lines        bytea,
    count        integer default null,
    content_type text default 'application/json'
) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic   postbus.topic := postbus.topic_options(topic);
    _id      bigint := _topic.id;           -- see publish_many
    _now     timestamptz := clock_timestamp();
    _type    text := coalesce(content_type, 'application/json');
    _count   integer := coalesce(count, cardinality(string_to_array(rtrim(encode(lines, 'escape'), E'\n'), E'\n')));
    _texts   text[];
    _ids     bigint[];
    _number  bigint;
begin
    if lines is null or _count < 0 then
        perform postbus.refuse('PB402', 'there are no lines, or fewer than none', 'give lines, and how many there are');
    end if;
    if _topic.storage_id is not null and not _topic.named_lanes and _count between 2 and _topic.segment_size
       and length(lines) <= _topic.max_payload_bytes
    then
        if _topic.block_writes_on_zero_subscriptions then
            perform postbus.check_subscribed(_topic);
        end if;
        perform postbus.tell(_id, _topic.notify);
        _number := postbus.append_segment(_topic, null, _now, _type, null, null, null, null, array[lines], length(lines), null, _count);
        return array(select _number * 1024 + i from generate_series(0, _count - 1) as i);
    end if;

    _texts := postbus.text_lines(lines);
    if (cardinality(_texts) >= _count and _count > 0) is not true then
        return postbus.publish_many(topic, postbus.lines_of(lines, _count), content_type => _type);
    elsif _topic.storage_id is not null or _topic.ordered
       or (length(lines) > _topic.max_payload_bytes and exists (select from unnest(_texts) as one (line)
                                                                 where octet_length(one.line) > _topic.max_payload_bytes))
    then
        return postbus.publish_many(topic, array(select convert_to(one.line, 'UTF8') from unnest(_texts[:_count]) as one (line)),
                                    content_type => _type);
    end if;
    perform postbus.tell(_id, _topic.notify);
    if _topic.name is null then
        perform postbus.note_topic(_topic, topic);
    end if;
    _ids := postbus.new_ids(_count);
    insert into postbus.queued (topic_id, id, published_at, priority, content_type, payload)
    select _id, one.id, _now, 4, _type, convert_to(one.line, 'UTF8')
      from (select unnest(_ids) as id, unnest(_texts) as line) as one
     where one.id is not null;      -- there may be more lines, as after the last line break
    return _ids;
end $$;

-- Publishes many messages without options, each a line of `lines`, and returns their ids in order. For JSON, which has no line
-- breaks if its encoder adds none. `count` is the number of lines. Without it they are counted, except for empty lines at the end.
--
-- One value is quicker to send than an array. A log stores the lines as they are: nothing splits them before they are decoded.
--
-- Writes: see append_segment and publish_many.
create or replace function postbus.publish_lines(
    topic        text,
    lines        bytea,
    count        integer default null,
    content_type text default 'application/json'
) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic  postbus.topic := postbus.topic_options(topic);
    _now    timestamptz := clock_timestamp();
    _type   text := coalesce(content_type, 'application/json');
    _count  integer := coalesce(count, cardinality(string_to_array(rtrim(encode(lines, 'escape'), E'\n'), E'\n')));
    _texts  text[];
    _number bigint;
begin
    if lines is null or _count < 0 then
        perform postbus.refuse('PB402', 'lines is null, or count is negative', 'give the lines and their number');
    elsif not postbus.is_content_type(_type) then
        perform postbus.refuse_content_type(_type);
    end if;
    if _topic.storage_id is not null and not _topic.named_lanes and _count between 2 and _topic.segment_size
       and length(lines) <= least(_topic.max_payload_bytes, 16777216)       -- see append_many
    then
        if _topic.block_writes_on_zero_subscriptions then
            perform postbus.check_subscribed(_topic);
        end if;
        perform postbus.wake_on_commit(_topic.id, _topic.notify);
        _number := postbus.append_segment(_topic.storage_id, _topic.id, _topic.lanes, null, _now, _type, null, null, null, null, array[lines],
                                          length(lines), null, _count);
        return array(select _number * 1024 + i from generate_series(0, _count - 1) as i);
    end if;

    _texts := postbus.text_lines(lines);
    return postbus.publish_many(
        topic,
        case when cardinality(_texts) >= _count then array(select convert_to(one.line, 'UTF8') from (select unnest(_texts[:_count]) as line) as one)
             else postbus.lines_of(lines, _count) end,
        content_type => _type);
end $$;

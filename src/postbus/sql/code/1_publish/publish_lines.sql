-- Publishes many messages without options, each a line of `lines`; returns their ids in order. For JSON, which has no line
-- breaks where its encoder adds none. `count` says how many lines there are; left out, they are counted, without empty
-- ones at the end.
--
-- A log keeps them as they are: nobody has to take them apart, neither here nor before they are decoded.
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
    _count  integer := coalesce(count, cardinality(string_to_array(rtrim(encode(lines, 'escape'), E'\n'), E'\n')));
    _number bigint;
begin
    if lines is null or _count < 0 then
        perform postbus.refuse('PB402', 'there are no lines, or fewer than none', 'give lines, and how many there are');
    end if;
    if _topic.storage_id is null or _topic.named_lanes or _count not between 2 and _topic.segment_size
       or length(lines) > _topic.max_payload_bytes
    then
        return postbus.publish_many(topic, postbus.lines_of(lines, _count), content_type => publish_lines.content_type);
    end if;
    if _topic.block_writes_on_zero_subscriptions then
        perform postbus.check_subscribed(_topic);
    end if;
    perform postbus.tell(_topic.id, _topic.notify, true);
    _number := postbus.append_segment(_topic, null, clock_timestamp(), coalesce(content_type, 'application/json'), null, null, null, null,
                                      array[lines], length(lines), null, _count);
    return array(select _number * 1024 + i from generate_series(0, _count - 1) as i);
end $$;

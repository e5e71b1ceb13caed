-- Reads what a cursor has not seen, in the order of sequences: segments of some lanes of a topic, up to about max_count messages
-- and max_bytes of payload, but always one segment. Changes nothing: cursors move by `advance`.
--
-- The last row is not a segment. It has next_cursor, the cursor to go on with; during_cursor, which becomes the cursor after any
-- message of these segments when its done sequence and done_index are set; `more`; and read_target, the position up to which was
-- read. A read that finds nothing takes no transaction id, unless it had to step over many segments of other topics or lanes: then
-- a read from next_cursor begins after these.
--
-- `target`, if given, is a position that was taken later than the cursor: groups that read up to the same target stand at the same
-- position afterwards. A cursor with an end ignores the target, and finds nothing once it has come to its end.
--
-- With in_lines, payloads that were published as lines are returned as one value: see publish_lines.
create or replace function postbus.read_log(
    topic     text,
    lanes     integer[],
    cursor    text,
    max_count integer default 1000,
    max_bytes bigint default 16777216,
    target    text default null,
    in_lines  boolean default false
) returns setof postbus.log_row
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
    _topic    record;
    _options  postbus.topic;
    _cursor   postbus.log_cursor := cursor::postbus.log_cursor;
    _sequence bigint;
    _snapshot pg_snapshot;
    _target   postbus.log_position;
    _segment  postbus.log_row;
    _count    integer := 0;
    _bytes    bigint := 0;
    _last     bigint;
    _stopped  boolean := false;
begin
    -- Most often a group has seen all up to a moment ago, nothing is late, and there is one partition to read. That case is handled
    -- here, in few expressions, since each costs time once per transaction. The sequence is taken before the snapshot: see
    -- log_position; the epoch after it: otherwise the snapshot might show segments of a new partition. A new storage has no epoch
    -- yet, and is read by read_partitions.
    select t.id, t.storage_id, t.storage into _topic from postbus.topic t where t.id = postbus.topic_id(topic) and t.name = topic;
    _sequence := case when _topic.storage = 'shared' and pg_current_xact_id_if_assigned() is null
                           and num_nonnulls(target, _cursor.target, _cursor.until, _cursor.done_sequence) = 0
                           and (_cursor.since_bound > (_cursor.seen).sequence) is not true
                           and pg_snapshot_xmin((_cursor.seen).snapshot) >= (_cursor.seen).txid
                      then postbus.last_sequence(_topic.storage_id) end;
    _snapshot := pg_current_snapshot();
    if (postbus.published_epoch(_topic.storage_id) = (_cursor.seen).sequence >> 43
        and split_part(current_setting('postbus.cluster', true), '/', 2) = 'postbus.cluster'::regclass::oid::text    -- see check_cluster
        and _sequence is not null and pg_snapshot_xmax(_snapshot) > (_cursor.seen).txid
        and postbus.learn_of_partitions()) is not true
    then
        _options := postbus.topic_options(topic);
        if _options.storage_id is null then
            perform postbus.refuse('PB432', format('topic %L is a QUEUE', topic),
                'take its messages by postbus.pop or claim; or make it PUB_SUB: postbus topics migrate ' || topic || ' --to PUB_SUB --group GROUP');
        end if;
        return query select * from postbus.read_partitions(_options, lanes, _cursor, max_count, max_bytes, target::postbus.log_position, in_lines);
        return;
    end if;
    for _segment in
        select s.sequence, s.lane, s.count, s.bytes, 0, s.published_at, s.content_type, s.content_types, s.keys, s.correlation_ids,
               s.headers::text[], case when read_log.in_lines then s.payloads else postbus.payloads_of(s.payloads, s.count, s.in_lines) end,
               null::text, null::text, null::boolean, null::text
          from postbus.segment_shared s
         where s.storage_id = _topic.storage_id and s.topic_id = _topic.id and s.lane = any (lanes)
           and s.sequence > (_cursor.seen).sequence and s.sequence < ((_sequence >> 43) + 1) << 43
           and not pg_visible_in_snapshot(s.txid, (_cursor.seen).snapshot) and pg_visible_in_snapshot(s.txid, _snapshot)
         order by s.topic_id, s.sequence limit greatest(max_count, 1) + 1
    loop
        _stopped := _count > 0 and (_count >= max_count or _bytes >= max_bytes);
        exit when _stopped;
        -- The row as it is: assigned to variables, arrays would be taken apart and put together again.
        return next _segment;
        _last := _segment.sequence;
        _count := _count + _segment.count;
        _bytes := _bytes + _segment.bytes;
    end loop;
    _target := postbus.next_position(_cursor.seen, _sequence, _snapshot, _count);
    return next postbus.end_of_read(_cursor, _target, case when _stopped then _last end);
end $$;

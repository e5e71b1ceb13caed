-- The slow path of read_log: reads part of a step, up to a given target or on from the middle of the step, from several partitions,
-- and late segments, which lie below the seen sequence since they were published before and committed after it.
create or replace function postbus.read_partitions(
    topic     postbus.topic,
    lanes     integer[],
    cursor    postbus.log_cursor,
    max_count integer,
    max_bytes bigint,
    target    postbus.log_position,
    in_lines  boolean
) returns setof postbus.log_row
language plpgsql as $$
declare
    _target   postbus.log_position := coalesce(cursor.target, cursor.until, target);
    _is_new   boolean := _target is null;
    _sequence bigint;
    _snapshot pg_snapshot;          -- shows the segments that may be read
    _since    bigint := greatest((cursor.seen).sequence + 1, cursor.done_sequence);
    _late     xid8[] := '{}';
    _has_late boolean;
    _low      bigint;
    _current  integer;              -- the epoch of the partition that is written to
    _learned  boolean;              -- assigned, which is quicker than to perform a statement
    _by_name  boolean;              -- each partition by its name: the storage is the topic's own, or is new
    _epochs   integer[];            -- of the partitions to read; null for late segments of all of them
    _closed   boolean[];
    _epoch    integer;
    _reading  refcursor;
    _segment  postbus.log_row;
    _last     bigint;
    _count    integer := 0;         -- messages, and their bytes, so far
    _bytes    bigint := 0;
    _stopped  boolean := false;
begin
    perform postbus.check_cluster();
    if _is_new then
        perform postbus.check_fresh();
        _sequence := postbus.last_sequence(topic.storage_id);
        _snapshot := pg_current_snapshot();
    elsif current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
          and _target.snapshot::text <> pg_current_snapshot()::text then
        perform postbus.refuse('PB402',
            format('the log cannot be read up to a given position in a transaction that is %s', current_setting('transaction_isolation')),
            'use READ COMMITTED: the transaction''s own snapshot may be older than that position');
    else
        _snapshot := _target.snapshot;
    end if;
    perform postbus.check_cursor(cursor, _snapshot);
    if cursor.until is not null and cursor.target is null and (cursor.seen).sequence = (cursor.until).sequence
       and (cursor.seen).snapshot::text = (cursor.until).snapshot::text then
        return next postbus.end_of_read(cursor, null, null);
        return;
    end if;
    _current := postbus.published_epoch(topic.storage_id);     -- after the snapshot: it shows nothing of later partitions
    _by_name := topic.storage = 'own' or _current is null;
    _learned := postbus.learn_of_partitions();         -- after the epoch, whose partition this session must know
    if pg_snapshot_xmin((cursor.seen).snapshot) < pg_snapshot_xmax((cursor.seen).snapshot) then
        _late := array(select x from pg_snapshot_xip((cursor.seen).snapshot) as x where x <= (cursor.seen).txid);
    end if;
    _has_late := _late <> '{}' or pg_snapshot_xmax((cursor.seen).snapshot) < (cursor.seen).txid;
    if _has_late and not _by_name then
        _low := (select min(l.epoch)::bigint << 43 from postbus.log_partition l
                  where l.storage_id = topic.storage_id
                    and (l.closed_txid is null or l.closed_txid > least(_late[1], pg_snapshot_xmax((cursor.seen).snapshot))));
    end if;
    select array_agg(part.epoch order by part.pass, part.epoch), array_agg(part.is_closed order by part.pass, part.epoch)
      into _epochs, _closed
      from (select null::integer as epoch, false as is_closed, 0 as pass where _has_late and not _by_name
            union all
            select l.epoch, l.closed_txid is not null, 1 from postbus.log_partition l
             where l.storage_id = topic.storage_id and l.epoch <= coalesce(_current, 1)
               and (l.epoch + 1)::bigint << 43 > coalesce(cursor.done_sequence, 0)
               and ((l.epoch + 1)::bigint << 43 > _since
                    or (_by_name and (l.closed_txid is null
                        or l.closed_txid > least(_late[1], pg_snapshot_xmax((cursor.seen).snapshot)))))) as part;
    <<partitions>>
    for _n in 1 .. coalesce(cardinality(_epochs), 0) loop
        _epoch := _epochs[_n];
        -- Locked, so that it is not dropped meanwhile. A partition that is gone had nothing for a live group.
        continue when _closed[_n] and not postbus.lock_partition(topic.storage_id, _epoch);
        -- Limit: the segments that are wanted, the one that was done last, and one that shows that there are more.
        if _epoch is null then
            -- Late segments lie below the seen sequence, and so come first. The plans of this query and of the last one are kept,
            -- since making a plan takes longer than most reads.
            open _reading for
                select late.* from postbus.late_segments(topic.storage_id, topic.id, lanes, cursor, _late, greatest(cursor.done_sequence, _low),
                                                         _since, _snapshot, in_lines, greatest(max_count - _count, 0) + 2) as late;
        elsif _by_name then
            open _reading for execute postbus.read_partition_sql(topic.storage_id, _epoch, _has_late, in_lines)
                using topic.id, lanes, greatest(_since, (_epoch::bigint << 43) + (cursor.since_id >> 10)), (cursor.seen).txid,
                      (cursor.seen).snapshot, _snapshot, greatest(max_count - _count, 0) + 2, _late,
                      pg_snapshot_xmax((cursor.seen).snapshot), coalesce(cursor.done_sequence, 0), cursor.since_bound,
                      cursor.since_at, cursor.since_id, coalesce(cursor.done_index, -1), cursor.since_snapshot;
        else
            open _reading for
                select s.sequence, s.lane, s.count, s.bytes,
                       greatest(case when s.sequence = cursor.done_sequence then cursor.done_index + 1 else 0 end,
                                case when s.sequence <= cursor.since_bound and postbus.first_id(s.sequence) = cursor.since_id & -1024
                                     then (cursor.since_id & 1023)::integer else 0 end),
                       s.published_at, s.content_type, s.content_types, s.keys, s.correlation_ids, s.headers::text[],
                       case when read_partitions.in_lines then s.payloads else postbus.payloads_of(s.payloads, s.count, s.in_lines) end,
                       null::text, null::text, null::boolean, null::text
                  from postbus.segment_shared s
                 where s.storage_id = topic.storage_id and s.topic_id = topic.id and s.lane = any (lanes)
                   and s.sequence >= greatest(_since, (_epoch::bigint << 43) + coalesce(cursor.since_id >> 10, 0))
                   and s.sequence < (_epoch + 1)::bigint << 43
                   and not pg_visible_in_snapshot(s.txid, (cursor.seen).snapshot) and pg_visible_in_snapshot(s.txid, _snapshot)
                   and (s.sequence <= cursor.since_bound
                        and (s.published_at < cursor.since_at and pg_visible_in_snapshot(s.txid, cursor.since_snapshot) is not false
                             or postbus.first_id(s.sequence) + s.count <= cursor.since_id)) is not true
                 order by s.topic_id, s.sequence limit greatest(max_count - _count, 0) + 2;
        end if;
        loop
            fetch _reading into _segment;
            exit when not found;
            continue when _segment.sequence = cursor.done_sequence and cursor.done_index >= _segment.count - 1;
            _stopped := _count > 0 and (_count >= max_count or _bytes >= max_bytes);
            exit partitions when _stopped;
            -- The row as it is: assigned to variables, arrays would be taken apart and put together again.
            return next _segment;
            _last := _segment.sequence;
            _count := _count + _segment.count - _segment.first_index;
            _bytes := _bytes + _segment.bytes;
        end loop;
        close _reading;
    end loop;
    _target := case when _is_new then postbus.next_position(cursor.seen, _sequence, _snapshot, _count) else _target end;
    return next postbus.end_of_read(cursor, _target, case when _stopped then _last end);
end $$;

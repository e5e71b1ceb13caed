-- Reads what a cursor has not seen, in the order of positions: segments of some lanes of a topic, up to about
-- max_count messages and max_bytes of payload (but one segment always). Changes nothing: cursors move by `advance`.
--
-- The last row is not a segment. It tells the cursor to go on with, next_cursor; the one in between,
-- during_cursor, which becomes the cursor of any message of these segments by its done_position and done_index;
-- whether more is there; and the place that was read up to, read_target. What finds nothing takes no transaction
-- id, unless it had to pass by much of others: then the next cursor spares the next read the way.
--
-- target, if given, is a place that was taken later than the cursor: groups that read up to the same one
-- stand at the same place afterwards. A cursor with an end ignores it, and finds nothing once it has come there.
--
-- With in_lines, payloads that were published as lines come as one value: see publish_lines.
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
    _topic   postbus.topic := postbus.topic_options(topic);
    _cursor  postbus.log_cursor := cursor::postbus.log_cursor;
    _target  postbus.log_place := coalesce(_cursor.target, _cursor.until, target::postbus.log_place);
    _is_new  boolean := _target is null;
    _fresh   boolean := pg_current_xact_id_if_assigned() is null;
    _since   bigint := greatest((_cursor.seen).position + 1, _cursor.done_position);
    _late    xid8[] := '{}';
    _has_late boolean;
    _low     bigint;
    _epochs  integer[];         -- of the leaves to look at; null for what is late in all of them
    _closed  boolean[];
    _epoch   integer;
    _reading refcursor;
    _segment postbus.log_row;
    _end     postbus.log_row;
    _ended   boolean := _cursor.until is not null and _cursor.target is null and (_cursor.seen).position = (_cursor.until).position
                        and (_cursor.seen).snapshot::text = (_cursor.until).snapshot::text;
    _count   integer := 0;
    _bytes   bigint := 0;
    _size    bigint;
    _stopped boolean := false;
begin
    if _topic.storage_id is null then
        perform postbus.refuse('PB432', format('topic %L is a QUEUE', topic), 'groups need a topic with semantics PUB_SUB');
    end if;
    if _is_new then
        if not _fresh then
            perform postbus.check_fresh();
        end if;
        _target.position := postbus.last_position(_topic.storage_id);
        _target.snapshot := pg_current_snapshot();
    elsif current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform postbus.refuse('PB402', format('up to a given place the log cannot be read in a transaction that is %s',
                                               current_setting('transaction_isolation')),
            'use READ COMMITTED: the transaction''s own snapshot may be older than that place');
    end if;
    if pg_snapshot_xmax(_target.snapshot) <= (_cursor.seen).txid and pg_snapshot_xmax(pg_current_snapshot()) < (_cursor.seen).txid then
        perform postbus.refuse('PB507', 'cursors are ahead of this server''s transaction ids: the database was restored from a dump',
            'run: postbus rebase');
    end if;
    if _ended then
        _end.more := false;
        _end.next_cursor := cursor;
        return next _end;
        return;
    end if;
    _size := pg_relation_size('postbus.loss'::regclass, 'init');       -- hears of new leaves: see append_segment
    if pg_snapshot_xmin((_cursor.seen).snapshot) < pg_snapshot_xmax((_cursor.seen).snapshot) then
        _late := array(select x from pg_snapshot_xip((_cursor.seen).snapshot) as x where x <= (_cursor.seen).txid);
    end if;
    _has_late := _late <> '{}' or pg_snapshot_xmax((_cursor.seen).snapshot) < (_cursor.seen).txid;
    if _has_late and _topic.storage = 'shared' then
        _low := (select min(l.epoch)::bigint << 43 from postbus.log_leaf l
                  where l.storage_id = _topic.storage_id
                    and (l.closed_txid is null or l.closed_txid > least(_late[1], pg_snapshot_xmax((_cursor.seen).snapshot))));
    end if;
    if _is_new and not _has_late and _since >> 43 = _target.position >> 43 then
        _epochs := array[_target.position >> 43];       -- as most often: only the leaf that is written to
        _closed := '{f}';
    else
        select array_agg(leaf.epoch order by leaf.pass, leaf.epoch), array_agg(leaf.is_closed order by leaf.pass, leaf.epoch)
          into _epochs, _closed
          from (select null::integer as epoch, false as is_closed, 0 as pass where _has_late and _topic.storage = 'shared'
                union all
                select l.epoch, l.closed_txid is not null, 1 from postbus.log_leaf l
                 where l.storage_id = _topic.storage_id
                   and (l.epoch + 1)::bigint << 43 > coalesce(_cursor.done_position, 0)
                   and ((l.epoch + 1)::bigint << 43 > _since
                        or (_topic.storage = 'own' and (l.closed_txid is null
                            or l.closed_txid > least(_late[1], pg_snapshot_xmax((_cursor.seen).snapshot)))))) as leaf;
    end if;
    <<leaves>>
    for _n in 1 .. coalesce(cardinality(_epochs), 0) loop
        _epoch := _epochs[_n];
        -- Locked, so that it is not dropped meanwhile. One that is gone had nothing for a live group.
        continue when _closed[_n] and not postbus.lock_leaf(_topic.storage_id, _epoch);
        -- Limit: as many as are wanted, the one that was done last, and one that tells that there are more.
        if _epoch is null then
            -- What is late lies below the seen position, and so comes first. See read_leaf_sql: these plans, unlike that
            -- one, are kept, and making one takes longer than most reads.
            open _reading for
                select late.position, late.lane, late.count, late.bytes,
                       case when late.position = _cursor.done_position then _cursor.done_index + 1 else 0 end,
                       late.published_at, late.content_type, late.content_types, late.keys, late.correlation_ids, late.headers::text[],
                       case when read_log.in_lines then late.payloads else postbus.payloads_of(late.payloads, late.count, late.in_lines) end,
                       null::text, null::text, null::boolean, null::text
                  -- By transaction id, one by one. Topic and lane are not to be looked up: their index would be read from the
                  -- beginning of the leaf. Positions tell which leaves to look at.
                  from (select s.*
                          from unnest(_late) as open (txid)
                         cross join lateral (
                             select s.* from postbus.segment_shared s
                              where s.storage_id = _topic.storage_id and s.txid = open.txid and s.topic_id + 0 = _topic.id
                                and s.position >= greatest(_cursor.done_position, _low) and s.position < _since
                             offset 0) as s
                        union all
                        select s.* from postbus.segment_shared s
                         where s.storage_id = _topic.storage_id and s.txid >= pg_snapshot_xmax((_cursor.seen).snapshot)
                           and s.txid <= (_cursor.seen).txid and s.topic_id + 0 = _topic.id
                           and s.position >= greatest(_cursor.done_position, _low) and s.position < _since) as late
                 where late.lane + 0 = any (lanes)
                   and pg_visible_in_snapshot(late.txid, _target.snapshot)
                   and (late.position <= _cursor.since_bound
                        and (late.published_at < _cursor.since_at and pg_visible_in_snapshot(late.txid, _cursor.since_snapshot) is not false
                             or postbus.first_id(late.position) + late.count <= _cursor.since_id)) is not true
                 order by late.position limit greatest(max_count - _count, 0) + 2;
        elsif _topic.storage = 'own' then
            open _reading for execute postbus.read_leaf_sql(_topic.storage_id, _epoch, _has_late, in_lines)
                using _topic.id, lanes, greatest(_since, (_epoch::bigint << 43) + (_cursor.since_id >> 10)), (_cursor.seen).txid,
                      (_cursor.seen).snapshot, _target.snapshot, greatest(max_count - _count, 0) + 2, _late,
                      pg_snapshot_xmax((_cursor.seen).snapshot), coalesce(_cursor.done_position, 0), _cursor.since_bound,
                      _cursor.since_at, _cursor.since_id, coalesce(_cursor.done_index, -1), _cursor.since_snapshot;
        else
            open _reading for
                select s.position, s.lane, s.count, s.bytes,
                       greatest(case when s.position = _cursor.done_position then _cursor.done_index + 1 else 0 end,
                                case when s.position <= _cursor.since_bound and postbus.first_id(s.position) = _cursor.since_id & -1024
                                     then (_cursor.since_id & 1023)::integer else 0 end),
                       s.published_at, s.content_type, s.content_types, s.keys, s.correlation_ids, s.headers::text[],
                       case when read_log.in_lines then s.payloads else postbus.payloads_of(s.payloads, s.count, s.in_lines) end,
                       null::text, null::text, null::boolean, null::text
                  from postbus.segment_shared s
                 where s.storage_id = _topic.storage_id and s.topic_id = _topic.id and s.lane = any (lanes)
                   and s.position >= greatest(_since, (_epoch::bigint << 43) + coalesce(_cursor.since_id >> 10, 0))
                   and s.position < (_epoch + 1)::bigint << 43
                   and not pg_visible_in_snapshot(s.txid, (_cursor.seen).snapshot) and pg_visible_in_snapshot(s.txid, _target.snapshot)
                   and (s.position <= _cursor.since_bound
                        and (s.published_at < _cursor.since_at and pg_visible_in_snapshot(s.txid, _cursor.since_snapshot) is not false
                             or postbus.first_id(s.position) + s.count <= _cursor.since_id)) is not true
                 order by s.topic_id, s.position limit greatest(max_count - _count, 0) + 2;
        end if;
        loop
            fetch _reading into _segment;
            exit when not found;
            continue when _segment.position = _cursor.done_position and _cursor.done_index >= _segment.count - 1;
            if _count > 0 and (_count >= max_count or _bytes >= max_bytes) then
                _stopped := true;
                exit leaves;
            end if;
            -- As it is: assigned to variables, arrays would be taken apart and put together again.
            return next _segment;
            _end.position := _segment.position;
            _count := _count + _segment.count - _segment.first_index;
            _bytes := _bytes + _segment.bytes;
        end loop;
        close _reading;
    end loop;

    _end.more := _stopped;
    if _count = 0 and _is_new and _target.position - (_cursor.seen).position < 1000 then
        _end.next_cursor := cursor;
    else
        if _is_new then
            _target.txid := pg_current_xact_id();
        end if;
        _cursor.target := _target;
        _cursor.done_position := coalesce(_cursor.done_position, 0);
        _cursor.done_index := coalesce(_cursor.done_index, -1);
        _end.during_cursor := _cursor;
        _end.read_target := _target;
        if _stopped then
            _cursor.done_position := _end.position;
            _cursor.done_index := 1024;
        else
            _cursor.seen := _target;
            _cursor.target := null;
            _cursor.done_position := null;
            _cursor.done_index := null;
            if _cursor.since_snapshot is not null then      -- all that it shows is seen: without it, groups come to the same place
                _cursor.since_at := null;
                _cursor.since_snapshot := null;
                _cursor.since_bound := case when _cursor.since_id is not null then _cursor.since_bound end;
            end if;
        end if;
        _end.next_cursor := _cursor;
    end if;
    _end.position := null;
    return next _end;
end $$;

-- Leases up to max_count messages of a topic for a group: see pop.
--
-- If the pull buffer has too few messages for this pop, the pop first moves messages to it from the log. A pop of one key, or of a
-- group that wants some keys only, may have to move more than it asks for until it finds messages of these keys.
--
-- A DEAD group comes back, and gets messages at once. `position` is that which the resurrection took, if the caller has brought the
-- group back. While another transaction is bringing it back, this pop gets messages that are in the buffer. A transaction that has
-- written cannot bring a group back, so its pop is refused.
--
-- Writes: see fill_buffer, claim_buffered and note_life.
create or replace function postbus.pop_group(
    topic      text,
    group_name text,
    member     text,
    max_count  integer,
    lease      interval,
    key        text,
    auto_ack   boolean,
    scan_floor text,
    max_bytes  bigint,
    as_of      timestamptz,
    "position" text default null
) returns setof postbus.popped
language plpgsql as $$
declare
    _topic  postbus.topic := postbus.topic_options(topic);
    _group  postbus.subscription;
    _parts  bigint[];           -- the group's subscription, and that of its history
    _part   bigint;
    _since  timestamptz := case when scan_floor like '3%' then to_timestamp(substr(scan_floor, 2)::double precision) else '-infinity' end;
    _found  postbus.deferred[];
    _buffer record;
    _read   record;
    _row    postbus.popped;
    _end    postbus.popped;
    _token  uuid := gen_random_uuid();
    _taken  integer := 0;
begin
    select * into _group from postbus.subscription s
     where s.topic_id = _topic.id and s.group_name = pop_group.group_name and s.state <> 'CANCELLED' and s.catch_up_of is null;
    if _group.id is null then
        perform postbus.check_is_log(_topic, topic, group_name);
        perform postbus.existing_subscription(topic, group_name);
    end if;
    _end.more := false;
    if _group.state = 'PAUSED' then
        _end.next_scan_floor := scan_floor;
        return next _end;
        return;
    elsif _group.state = 'DEAD' then
        select r.position into position from postbus.bring_back(array[_group.id]) as r;
        _group.seen_at := as_of;
    end if;
    lease := coalesce(lease, _topic.lease);
    _parts := array(select s.id from postbus.subscription s
                     where s.id = _group.id or s.catch_up_of = _group.id and s.state = 'ACTIVE' order by s.id);
    select * into _buffer from postbus.look_at_buffer(_parts, _topic, max_count, key, _since, as_of);
    if _buffer.is_enough then
        _taken := postbus.claim_buffered(_parts, _topic, _token, member, max_count, max_bytes, lease, key, _since, as_of);
        _end.more := _end.more or _taken > 0;
    end if;
    if _taken = 0 then      -- there are too few messages, or they wait behind messages in hand
        for _round in 1 .. case when position is null then 1 else 3 end loop      -- a group that came back gets messages now: see is_on_its_way
            _end.more := false;
            foreach _part in array _parts loop
                -- If one key, or some, are wanted, the first messages in the log may all be of other keys.
                select * into _read
                  from postbus.fill_buffer(_part, _topic, case when num_nonnulls(key, _group.keys) > 0 then greatest(max_count, 10000)
                                                          when max_count < 100 then 1000 else max_count end,
                                      max_bytes, case when _buffer.first_due is null then max_count - _taken else 0 end, key, _token, member,
                                      lease, as_of, position);
                _taken := _taken + _read.taken;
                _end.more := _end.more or _read.more or _read.buffered > _read.taken;
            end loop;
            if _taken = 0 then
                _taken := postbus.claim_buffered(_parts, _topic, _token, member, max_count, max_bytes, lease, key, _since, as_of);
            end if;
            exit when _taken > 0 or not _end.more;
        end loop;
    end if;
    _found := array(select r from postbus.deferred r where r.token = _token order by r.sequence, r.id);
    if cardinality(_found) > 0 then
        if auto_ack then
            perform postbus.settle_popped(_token, null, 'done', null, null, null, null, as_of);
        end if;
        select topic, case when not auto_ack then _token end, as_of + lease, lease, array_agg(f.id), array_agg(f.published_at),
               array_agg(f.attempts), array_agg(4::smallint), array_agg(f.key), array_agg(f.correlation_id), array_agg(f.content_type),
               array_agg(f.headers::text), array_agg(f.payload)
          into _row.topic, _row.token, _row.ends_at, _row.lease_length, _row.ids, _row.published_ats, _row.attempts, _row.priorities,
               _row.keys, _row.correlation_ids, _row.content_types, _row.headers, _row.payloads
          from unnest(_found) as f;
        return next _row;
    end if;
    if _group.seen_at < as_of - _topic.heartbeat_interval / 2 or _group.stopped_at >= _group.seen_at then
        perform postbus.note_life(array[_group.id], as_of);
    end if;
    -- Messages that became due two seconds before the first one found are settled or in hand. The next pop does not step over their
    -- dead rows, however long these stay.
    _end.next_scan_floor := '3' || extract(epoch from coalesce(_buffer.first_due, as_of) - interval '2 seconds')::text;
    if not _end.more then
        select min(next.due_at) - as_of into _end.next_due
          from unnest(_parts) as part (id)
         cross join lateral (select r.due_at from postbus.deferred r
                              where r.subscription_id = part.id and not r.parked and r.due_at > as_of order by r.due_at limit 1) as next;
    end if;
    return next _end;
end $$;

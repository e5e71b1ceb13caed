-- Fills the pull buffer of a group: moves about max_count messages from the log to `deferred`, where pops take them; only those
-- whose keys the group wants. Returns their number, and whether there are more. The first `take` of them, of the given key if there
-- is one, are leased to the pop with this token at once: see claim_buffered.
--
-- One process at a time fills the buffer of a group. Others find its messages when it has committed. Lanes that a worker holds are
-- left to that worker. A transaction that has written moves nothing (see check_fresh), except from history, which has an end, and
-- up to `target`, a position that this transaction took before it wrote.
--
-- A message is parked behind others of its key. The message in front is locked, so that a session that settles it sees the parked
-- one. If the message in front is just being settled, and so cannot be locked, the other is not parked, and claim_buffered keeps
-- the order. A late message is not parked either: one that was committed after another message of its key that has a higher
-- sequence and is in the buffer. So parked messages lie behind all messages of their key that may be in hand: see last_in_hand.
--
-- Writes: deferred, cursor.  Locks: an advisory lock for the transaction; rows of deferred, for share (skip locked).
create or replace function postbus.fill_buffer(
    subscription_id bigint,
    topic           postbus.topic,
    max_count       integer,
    max_bytes       bigint,
    take            integer,
    key             text,
    token           uuid,
    member          text,
    lease           interval,
    as_of           timestamptz,
    target          text,
    out buffered integer,
    out taken    integer,
    out more     boolean
)
language plpgsql as $$
declare
    _position record;
    _rows     postbus.log_row[];
    _end      postbus.log_row;
    _target   text := target;
    _passes   boolean := exists (select from postbus.subscription s where s.id = fill_buffer.subscription_id and s.on_failure = 'pass');
begin
    buffered := 0;
    taken := 0;
    more := false;
    if (pg_current_xact_id_if_assigned() is not null and _target is null and not exists (
            select from postbus.subscription s where s.id = fill_buffer.subscription_id and s.catch_up_of is not null))
       or not pg_try_advisory_xact_lock(hashtext('postbus.buffer'), hashtext(subscription_id::text)) then
        return;
    end if;
    -- The target of lanes in the middle of a step is no target for other lanes. A transaction that has written cannot take a
    -- position any more, so the next pop does.
    for _position in select * from postbus.positions_to_buffer(subscription_id, topic.lease, as_of) loop
        if _position.needs_target and _target is null and pg_current_xact_id_if_assigned() is not null then
            more := true;
            continue;
        end if;
        _rows := array(select r from postbus.read_log(topic.name, _position.lanes, _position.cursor, max_count, max_bytes, _target) as r);
        _end := _rows[cardinality(_rows)];
        continue when _end.next_cursor = _position.cursor;
        _target := coalesce(_target, case when _position.needs_target then _end.read_target end);
        more := more or _end.more or _position.is_on_its_way;     -- there may be newer messages after its target
        with lanes as (
            select own.lane, own.number, own.passed + coalesce(sum(r.count - r.first_index), 0) as passed
              from unnest(_position.lanes, _position.numbers, _position.passed) as own (lane, number, passed)
              left join unnest(_rows) as r on r.lane = own.lane and r.sequence is not null
             group by own.lane, own.number, own.passed
        ), moved as (
            insert into postbus.cursor (subscription_id, lane, number, cursor, passed)
            select fill_buffer.subscription_id, lanes.lane, lanes.number + 1, _end.next_cursor::postbus.log_cursor, lanes.passed
              from lanes
             order by lanes.lane
            on conflict do nothing
            returning lane
        ), message as (
            select r.lane, r.sequence, postbus.first_id(r.sequence) + m.n - 1 as id, r.published_at, m.key, m.correlation_id,
                   coalesce(m.content_type, r.content_type) as content_type, m.headers, m.payload
              from unnest(_rows) as r
              join moved on moved.lane = r.lane
             cross join lateral unnest(r.payloads, r.keys, r.correlation_ids, r.content_types, r.headers)
                        with ordinality as m (payload, key, correlation_id, content_type, headers, n)
              -- Read after the cursor was, not before: see join_key.
              join postbus.subscription own on own.id = fill_buffer.subscription_id and (own.keys is null or m.key = any (own.keys))
             where r.sequence is not null and m.n > r.first_index
               and not exists (select from postbus.settled_ahead a
                                where a.subscription_id = own.id and a.lane = r.lane and a.sequence = r.sequence
                                  and a.indexes @> (m.n - 1)::integer)
        ), busy as (        -- keys with messages in the pull buffer; is_kept: the first of these stays there until this has committed
            select wanted.lane, wanted.key, locked.is is not null as is_kept, last.sequence as last_sequence, last.id as last_id
              from (select distinct message.lane, message.key from message where message.key is not null) as wanted
             cross join lateral (select from postbus.deferred ahead
                                  where ahead.subscription_id = fill_buffer.subscription_id and ahead.lane = wanted.lane and ahead.key = wanted.key
                                    and not (_passes and postbus.awaits_retry(ahead, as_of))
                                  limit 1) as ahead
              left join lateral (select true as is from postbus.deferred ahead
                                  where ahead.subscription_id = fill_buffer.subscription_id and ahead.lane = wanted.lane and ahead.key = wanted.key
                                    and not (_passes and postbus.awaits_retry(ahead, as_of))
                                  order by ahead.sequence, ahead.id limit 1 for share skip locked) as locked on true
              left join lateral (select ahead.sequence, ahead.id from postbus.deferred ahead
                                  where ahead.subscription_id = fill_buffer.subscription_id and ahead.lane = wanted.lane and ahead.key = wanted.key
                                  order by ahead.sequence desc, ahead.id desc limit 1) as last on true
        ), ranked as (      -- the first of each key, then the second of each, ...
            select m.*, busy.is_kept, ((m.sequence, m.id) < (busy.last_sequence, busy.last_id)) is true as is_late,
                   busy.key is null and (fill_buffer.key is null or m.key = fill_buffer.key) is true as is_free,
                   case when m.key is null then 1
                        else row_number() over (partition by m.lane, m.key order by m.sequence, m.id) end as of_key
              from message m
              left join busy on busy.lane = m.lane and busy.key = m.key
        ), chosen as (
            select r.*, r.is_free and count(*) filter (where r.is_free) over earlier <= take - taken
                        and (sum(octet_length(r.payload)) filter (where r.is_free) over earlier - octet_length(r.payload) < max_bytes
                             or count(*) filter (where r.is_free) over earlier + taken = 1) as is_taken
              from ranked r
            window earlier as (order by r.of_key, r.sequence, r.id)
        ), stretch as materialized (
            select st.lane, max(st.number) as number from postbus.stretch st
             where st.subscription_id = fill_buffer.subscription_id and st.lane = any (_position.lanes) group by st.lane
        ), kept as (
            insert into postbus.deferred (subscription_id, lane, id, sequence, buffered, parked, due_at, attempts, token, member, published_at,
                                          key, correlation_id, content_type, headers, payload, stretch)
            select fill_buffer.subscription_id, c.lane, c.id, c.sequence, true, not (c.is_taken or c.is_late) and (c.of_key > 1 or c.is_kept is true),
                   case when c.is_taken then as_of + fill_buffer.lease else as_of end, c.is_taken::integer,
                   case when c.is_taken then fill_buffer.token end, case when c.is_taken then fill_buffer.member end,
                   c.published_at, c.key, c.correlation_id, c.content_type, c.headers::jsonb, c.payload, stretch.number
              from chosen c
              left join stretch on stretch.lane = c.lane
             order by c.sequence, c.id
            on conflict do nothing
            returning deferred.token
        )
        select fill_buffer.buffered + count(*), fill_buffer.taken + count(kept.token) into buffered, taken from kept;
        exit when buffered >= max_count;
    end loop;
end $$;

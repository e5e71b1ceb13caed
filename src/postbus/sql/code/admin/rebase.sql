-- Makes the cursors of a database that was restored into another server work there. Each group gets the messages that it had not
-- seen. It may get messages again that it had seen out of the order of sequences, or that its other lanes had passed. Returns the
-- number of moved cursors. All segments are rewritten, and publishers wait meanwhile. Has to be called in a transaction of its own.
--
-- The database keeps its identity (see event_id), since it replaces the one that was dumped. With as_copy it gets a new identity:
-- for a copy that runs while the original goes on.
--
-- Writes: segment, receipt, cursor, lane, stretch, joining, log_partition, partition_topic, topic_count, storage_count,
-- subscription, scope, queued, cluster; see note_action.
-- Locks: segment, cursor and lane, in exclusive mode.
create or replace function postbus.rebase(as_copy boolean default false) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _storage  record;
    _lane     record;
    _part     record;
    _position postbus.log_position;
    _last     bigint;
    _count    bigint := 0;
    _source   uuid := postbus.source();
begin
    lock table postbus.segment, postbus.cursor, postbus.lane in exclusive mode;
    perform postbus.check_fresh();
    _last := (select max(c.handed_out) from postbus.cursor c);
    perform postbus.rebase_moments();
    for _storage in
        select s.id, postbus.epoch_sequence(s.id) as sequence, last.epoch, counter.cursor as counter
          from postbus.log_storage s
         cross join lateral (select max(l.epoch) as epoch from postbus.log_partition l where l.storage_id = s.id) as last
          left join postbus.storage_count counter on counter.storage_id = s.id
    loop
        if pg_sequence_last_value(_storage.sequence) > _storage.epoch then      -- a dump has newer values of sequences than of rows
            perform setval(_storage.sequence, _storage.epoch);
        end if;
        _position.sequence := postbus.last_sequence(_storage.id);
        _position.snapshot := pg_current_snapshot();
        _position.txid := pg_current_xact_id();
        for _lane in
            select c.subscription_id, c.lane, s.topic_id, c.number, c.cursor, c.passed, c.at, c.handed_out
              from postbus.current_cursor c
              join postbus.subscription s on s.id = c.subscription_id
              join postbus.topic t on t.id = s.topic_id and t.storage_id = _storage.id
        loop
            insert into postbus.cursor (subscription_id, lane, number, cursor, passed, at, fenced_at)
            values (_lane.subscription_id, _lane.lane, _lane.number + 1,
                    postbus.rebased(_lane.cursor, _storage.id, _lane.topic_id, _lane.lane, _lane.handed_out, _position),
                    _lane.passed, _lane.at, clock_timestamp());
            _count := _count + 1;
        end loop;
        update postbus.stretch st
           set began = postbus.rebased(st.began, _storage.id, st.topic_id, st.lane, _last, _position, true),
               reached = case when not (st.reached is null)
                              then postbus.rebased(st.reached, _storage.id, st.topic_id, st.lane, _last, _position, true) end
         where st.topic_id in (select t.id from postbus.topic t where t.storage_id = _storage.id);
        -- A history does not read messages beyond its end, but its new cursor does not tell any more which these are: so its
        -- stretch ends before them, and it goes on in another stretch.
        with history as (
            select c.subscription_id, c.lane, c.number, c.cursor, before.cursor as was
              from postbus.current_cursor c
              join postbus.cursor before on before.subscription_id = c.subscription_id and before.lane = c.lane and before.number = c.number - 1
             where (c.cursor).until is not null
        ), gone_on as (
            insert into postbus.stretch (subscription_id, lane, number, topic_id, group_id, group_name, txid, began, died)
            select st.subscription_id, st.lane, h.number, st.topic_id, st.group_id, st.group_name, st.txid, h.cursor, st.died
              from postbus.stretch st join history h on h.subscription_id = st.subscription_id and h.lane = st.lane
              join postbus.topic t on t.id = st.topic_id and t.storage_id = _storage.id
             where st.reached is null
        )
        update postbus.stretch st
           set reached = postbus.rebased(h.was, _storage.id, st.topic_id, st.lane, _last, _position, true),
               died = coalesce(st.died, row(_position.sequence, '2', pg_current_snapshot())::postbus.log_position)
          from history h
         where h.subscription_id = st.subscription_id and h.lane = st.lane and st.reached is null
           and st.topic_id in (select t.id from postbus.topic t where t.storage_id = _storage.id);
        update postbus.joining j
           set cursors = array(select postbus.rebased(c, _storage.id, j.topic_id, j.lane, _last, _position) from unnest(j.cursors) as c)
                         || postbus.cursor_at(row(j.sequence, '2', '3:3:')::postbus.log_position)
         where j.topic_id in (select t.id from postbus.topic t where t.storage_id = _storage.id);
        insert into postbus.topic_count as known (topic_id, messages, bytes)
        select g.topic_id, sum(g.count), sum(g.bytes) from postbus.segment g
         where g.storage_id = _storage.id
           and (_storage.counter is null or g.sequence > ((_storage.counter).seen).sequence
                or not pg_visible_in_snapshot(g.txid, ((_storage.counter).seen).snapshot))
         group by g.topic_id
        on conflict on constraint topic_count_pkey do update
           set messages = known.messages + excluded.messages, bytes = known.bytes + excluded.bytes;
        insert into postbus.storage_count as known (storage_id, cursor)
        values (_storage.id, postbus.cursor_at(_position))
        on conflict on constraint storage_count_pkey do update set cursor = excluded.cursor;
    end loop;
    update postbus.segment g set txid = '3';
    for _part in
        select before.n as number, before.part
          from postbus.current_cursor c
         cross join lateral (select lead(st.number) over (order by st.number) as n, st as part from postbus.stretch st
                              where st.subscription_id = c.subscription_id and st.lane = c.lane) as before
         where (c.cursor).until is not null and before.n is not null
    loop
        perform postbus.move_ahead_to_stretch(_part.part, _part.number);
    end loop;
    update postbus.log_partition l set closed_txid = pg_current_xact_id() where l.closed_txid is not null;
    update postbus.log_partition l
       set messages = (select coalesce(sum(g.count), 0) from postbus.segment g where g.storage_id = l.storage_id and g.sequence >> 43 = l.epoch);
    update postbus.partition_mark m set txid = pg_current_xact_id() where m.at is not null;
    delete from postbus.partition_topic;
    insert into postbus.partition_topic (storage_id, epoch, topic_id, messages, first_at)
    select g.storage_id, g.sequence >> 43, g.topic_id, sum(g.count), min(g.published_at) from postbus.segment g group by 1, 2, 3;
    -- Queues are claimed in the order of transactions: messages of the other server would wait behind all that are published here.
    update postbus.queued q set txid = pg_current_xact_id() where q.txid > pg_current_xact_id();
    update postbus.lane l set holder = null, token = gen_random_uuid(), held_since = null;
    -- Seen now: no process could send heartbeats here before.
    update postbus.subscription s
       set subscribed = row((s.subscribed).sequence, '2', '3:3:')::postbus.log_position, started = null,
           seen_at = clock_timestamp(), state_changed_at = clock_timestamp();
    update postbus.scope c set snapshot = '4:4:';       -- which shows all segments
    update postbus.cluster c
       set identifier = null, table_oid = 'postbus.cluster'::regclass, noted_at = clock_timestamp(),
           source = case when as_copy then gen_random_uuid() else c.source end;
    begin
        update postbus.cluster c set identifier = (select system_identifier from pg_control_system());
    exception when insufficient_privilege then
        null;
    end;
    perform postbus.note_action('database.rebase', affected => _count, given => jsonb_build_object('as_copy', as_copy),
                                before => jsonb_build_object('source', _source), after => jsonb_build_object('source', postbus.source()));
    return _count;
end $$;

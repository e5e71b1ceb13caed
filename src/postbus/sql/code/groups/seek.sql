-- Moves a group to a position, given as for subscribe. Processes that consume for it lose its lanes and start again from there.
-- Messages that wait for a retry, and those parked behind them, stay; a catch-up ends for good. Returns how many messages are then
-- ahead of the group. With dry_run nothing changes. Has to be called in a transaction of its own.
--
-- Writes: cursor, lane, stretch, joining, receipt, deferred, settled_ahead, catch_up; see note_action.  Locks: the subscription's
-- row, lane rows.
create or replace function postbus.seek(
    topic      text,
    group_name text,
    start      text,
    start_at   timestamptz default null,
    start_id   bigint default null,
    dry_run    boolean default false
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic    postbus.topic := postbus.topic_options(topic);
    _position postbus.log_position;
    _cursor   postbus.log_cursor;
    _found    postbus.subscription;
    _history  bigint;
    _waiting  tid[];
    _before   jsonb;
    _count    bigint;
begin
    if _topic.storage_id is null then
        perform postbus.refuse('PB432', format('topic %L is a QUEUE', topic),
            format('only groups of PUB_SUB topics can be moved; make the topic PUB_SUB: postbus topics migrate %s --to PUB_SUB --group %s',
                   topic, group_name));
    end if;
    _position := postbus.take_position(_topic.storage_id);
    _cursor := postbus.start_cursor(_topic, start, start_at, start_id, _position);
    _found := postbus.existing_subscription(topic, group_name);
    if not dry_run then
        _before := postbus.group_position(_found.id);
        perform postbus.note_joining(_topic);
        for _history in
            select s.id from postbus.subscription s join postbus.catch_up c on c.subscription_id = s.id
             where s.catch_up_of = _found.id and c.status <> 'COMPLETED'
        loop
            _waiting := array(
                select r.ctid from postbus.deferred r
                 where r.subscription_id = _history
                   and exists (select from postbus.catch_up c where c.subscription_id = _history and c.status = 'IN_PROGRESS')
                   and not exists (select from postbus.deferred known
                                    where known.subscription_id = _found.id and known.lane = r.lane and known.id = r.id)
                   for update);
            perform postbus.note_left_behind(_topic, _waiting, 'SKIPPED');
            update postbus.deferred r set subscription_id = _found.id, stretch = - postbus.stretch_of(_found.id, r.lane)
             where r.ctid = any (_waiting);
            perform postbus.end_subscription(_history, 'CANCELLED');
        end loop;
        perform postbus.move_ahead_to_receipts(_topic, _found.id);      -- a group that goes back wants these again
        perform postbus.move_cursors(_found.id, _cursor, 'seek');
        -- Messages in the pull buffer only wait to be popped: the group reads the wanted ones from the log again.
        perform postbus.clear_buffer(_found.id);
        perform postbus.move_deferred_to_stretch(_topic, _found.id);
        perform postbus.set_passed_before(_found.id, _topic, _cursor, _position);
        perform pg_notify('postbus', _topic.id::text);
    end if;
    _count := postbus.count_unseen(_topic, _cursor, _position);
    if not dry_run then
        perform postbus.note_action('group.seek', topic, group_name, affected => _count, before => _before,
            after => jsonb_strip_nulls(jsonb_build_object('start', start, 'start_at', start_at, 'start_id', start_id))
                     || postbus.group_position(_found.id));
    end if;
    return _count;
end $$;

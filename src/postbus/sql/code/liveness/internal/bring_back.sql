-- Brings DEAD groups back to life. Each goes on from its position, with the messages that are still retained. `missed` is their
-- number, which is kept within the limits of the group's catch-up. Without a catch-up the group goes on with new messages.
-- catch_up, if given, replaces its options. `position` is that which was taken for this: the same transaction can read the log up
-- to it, see fill_buffer. Has to be called in a transaction of its own.
--
-- Writes: subscription, stretch, joining, group_event; see bound_catch_up.  Locks: subscription rows (skip locked).
create or replace function postbus.bring_back(
    subscription_ids bigint[],
    with_catch_up    boolean default true,
    catch_up         jsonb default null
) returns table (subscription_id bigint, missed bigint, skipped bigint, catch_up_id bigint, "position" text)
language plpgsql as $$
declare
    _now       timestamptz := clock_timestamp();
    _sequences jsonb;
    _position  postbus.log_position;
    _cursor    postbus.log_cursor;
    _found     postbus.subscription;
    _topic     postbus.topic;
begin
    perform postbus.check_cluster();
    perform postbus.check_fresh();
    -- A position of each storage, as in take_position: sequences first, then the snapshot, then an own transaction id.
    select jsonb_object_agg(used.id, postbus.last_sequence(used.id)) into _sequences
      from (select distinct t.storage_id as id from postbus.subscription s join postbus.topic t on t.id = s.topic_id
             where s.id = any (subscription_ids)) as used;
    _position.snapshot := pg_current_snapshot();
    _position.txid := pg_current_xact_id();
    for _found in
        select * from postbus.subscription s
         where s.id = any (subscription_ids) and s.state = 'DEAD' and s.catch_up_of is null order by s.id
           for no key update skip locked        -- groups that another session is just bringing back
    loop
        _topic := postbus.subscribed_topic(_found.id);
        _found.catch_up := coalesce(bring_back.catch_up, _found.catch_up);
        _position.sequence := _sequences -> _topic.storage_id::text;
        update postbus.subscription s set state = 'ACTIVE', state_changed_at = _now, seen_at = _now, missed = 0, missed_at = null,
               catch_up = case when s.id = _found.id then _found.catch_up else s.catch_up end
         where s.id = _found.id or (s.catch_up_of = _found.id and s.state = 'DEAD');
        perform postbus.note_return(part.id)
           from postbus.subscription part
          where part.id = _found.id and with_catch_up       -- otherwise its cursor is set: see begin_stretch
             or part.catch_up_of = _found.id and part.state <> 'CANCELLED';
        subscription_id := _found.id;
        position := _position::text;
        if with_catch_up then
            select b.missed, b.skipped, b.catch_up_id into missed, skipped, catch_up_id
              from postbus.bound_catch_up(_found, _topic, _position, 'resurrection') as b;
            perform postbus.note_joining(_topic, _found.id);
            perform postbus.join_stretches(_found.id);
        else
            missed := (select c.messages from postbus.count_before(_found.id, _topic, _position, null) as c)
                      + postbus.clear_buffer(_found.id);
            skipped := missed;
            catch_up_id := null;
            _cursor.seen := _position;
            perform postbus.copy_ahead_to_receipts(_topic, _found.id);
            perform postbus.move_cursors(_found.id, _cursor, 'skip');
            perform postbus.set_passed_before(_found.id, _topic, _cursor, _position);
            if exists (select from postbus.subscription part where part.catch_up_of = _found.id and part.state = 'ACTIVE') then
                perform postbus.note_joining(_topic, _found.id);        -- that history goes on from its position
            end if;
        end if;
        insert into postbus.group_event (at, name, topic, group_name, fields)
        values (_now, 'group.resurrected', _topic.name, _found.group_name,
                jsonb_build_object('missed', missed, 'skipped', skipped, 'silent_seconds', round(extract(epoch from _now - _found.seen_at)),
                                   'after', case when _found.stopped_at >= _found.seen_at then 'stop' else 'silence' end));
        perform pg_notify('postbus', _topic.id::text);
        return next;
    end loop;
end $$;

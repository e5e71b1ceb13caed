-- Keeps the messages ahead of a group within the limits of its catch-up. If they are more than beside_from, or than max_messages, a
-- subscription of its own works through them, up to the given position, while the group goes on from there with new messages.
-- Beyond max_messages the oldest are skipped, but only messages that the position shows, and so none that is yet to be committed.
--
-- Writes: subscription, lane, cursor, stretch, deferred, receipt, settled_ahead, catch_up.  Locks: lane rows.
create or replace function postbus.bound_catch_up(
    subscription postbus.subscription,
    topic        postbus.topic,
    "position"   postbus.log_position,
    reason       text,
    out missed      bigint,
    out skipped     bigint,
    out catch_up_id bigint
)
language plpgsql as $$
declare
    _options jsonb := postbus.catch_up_options(subscription.catch_up);
    _most    bigint := coalesce((_options ->> 'max_messages')::bigint, 9223372036854775807);
    _numbers bigint[];      -- those that its cursors get below if no other session moves them
    _from_id bigint;
    _cursor  postbus.log_cursor;
begin
    _numbers := array(select c.number + 1 from postbus.current_cursor c where c.subscription_id = subscription.id order by c.lane);
    select c.messages, c.from_id into missed, _from_id from postbus.count_before(subscription.id, topic, position, _most) as c;
    skipped := 0;
    if missed <= least(_most, (_options ->> 'beside_from')::bigint) then
        return;
    end if;
    -- From here on no process moves these cursors: the holders have lost the lanes.
    perform postbus.move_cursors(subscription.id, null, null);
    if _numbers <> array(select c.number from postbus.current_cursor c where c.subscription_id = subscription.id order by c.lane) then
        select c.messages, c.from_id into missed, _from_id from postbus.count_before(subscription.id, topic, position, _most) as c;
    end if;
    skipped := greatest(missed - _most, 0);
    insert into postbus.subscription (topic_id, group_name, start, subscribed, on_failure, catch_up, catch_up_of, keys)
    values (topic.id, subscription.group_name, 'CATCH_UP', position, subscription.on_failure, _options, subscription.id, subscription.keys)
    returning id into catch_up_id;
    insert into postbus.lane (subscription_id, lane)
    select bound_catch_up.catch_up_id, c.lane from postbus.current_cursor c where c.subscription_id = subscription.id;
    insert into postbus.cursor (subscription_id, lane, number, cursor, moved)
    select bound_catch_up.catch_up_id, c.lane, 1, postbus.cursor_up_to(case when skipped > 0 then postbus.cursor_without_older(c.cursor, _from_id)
                                                                     else c.cursor end, position), 'start'
      from postbus.current_cursor c where c.subscription_id = subscription.id;
    perform postbus.begin_stretch(catch_up_id, c.lane, 1, null, c.cursor) from postbus.current_cursor c where c.subscription_id = catch_up_id;
    insert into postbus.catch_up (subscription_id, reason, total, skipped)
    values (catch_up_id, bound_catch_up.reason, missed - skipped, bound_catch_up.skipped);
    -- Deferred messages that the history will still read belong to it, so that it passes them.
    update postbus.deferred r set subscription_id = bound_catch_up.catch_up_id, stretch = 1
     where r.subscription_id = subscription.id and postbus.is_ahead(r.subscription_id, r.lane, r.id, r.sequence);
    update postbus.receipt r set subscription_id = bound_catch_up.catch_up_id, stretch = 1
      from postbus.settled_ahead a
     cross join lateral (select postbus.first_id(a.sequence) + index as id
                           from unnest(a.indexes) as run, generate_series(lower(run), upper(run) - 1) as index) as one
     where a.subscription_id = subscription.id and r.storage_id = topic.storage_id and r.subscription_id = subscription.id and r.id = one.id
       and r.stretch >= postbus.stretch_of(subscription.id, a.lane);
    update postbus.settled_ahead a set subscription_id = bound_catch_up.catch_up_id where a.subscription_id = subscription.id;
    _cursor.seen := position;
    perform postbus.move_cursors(subscription.id, _cursor, 'catch-up');
    perform postbus.set_passed_before(subscription.id, topic, _cursor, position);
    perform pg_notify('postbus', topic.id::text);
end $$;

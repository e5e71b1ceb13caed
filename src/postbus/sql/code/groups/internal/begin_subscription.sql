-- Registers a group on a topic, as `subscription` says, with this cursor in all lanes; does nothing if the group is registered
-- already. Messages ahead of it are kept within the limits of its catch-up. subscription.subscribed is the current position.
--
-- Writes: subscription, lane, cursor, stretch, joining; see bound_catch_up.
create or replace function postbus.begin_subscription(
    topic        postbus.topic,
    subscription postbus.subscription,
    cursor       postbus.log_cursor,
    out subscription_id bigint,
    out missed          bigint,
    out skipped         bigint,
    out catch_up_id     bigint
)
language plpgsql
set enable_seqscan = off as $$      -- a thousand of these in one transaction are planned before the tables have statistics
declare
    _made postbus.subscription;
begin
    insert into postbus.subscription (topic_id, group_name, state, start, start_at, start_id, subscribed, on_failure, catch_up,
                                      waits_for_queue, keys, scope_id, started)
    values (topic.id, subscription.group_name, coalesce(subscription.state, 'ACTIVE'), subscription.start, subscription.start_at,
            subscription.start_id, subscription.subscribed, coalesce(subscription.on_failure, 'block'), coalesce(subscription.catch_up, '{}'),
            coalesce(subscription.waits_for_queue, false), subscription.keys, subscription.scope_id, begin_subscription.cursor)
    on conflict do nothing
    returning * into _made;
    subscription_id := _made.id;
    if subscription_id is null then
        return;
    end if;
    insert into postbus.lane (subscription_id, lane)
    select _made.id, lane.n from generate_series(0, topic.lanes - 1) as lane (n);
    insert into postbus.cursor (subscription_id, lane, number, cursor, moved)
    select _made.id, lane.n, 1, begin_subscription.cursor, 'start' from generate_series(0, topic.lanes - 1) as lane (n);
    perform postbus.set_passed_before(subscription_id, topic, cursor, _made.subscribed);
    perform postbus.begin_stretch(_made.id, lane.n, 1, null, begin_subscription.cursor) from generate_series(0, topic.lanes - 1) as lane (n);
    if (cursor.seen).txid = '2' then        -- otherwise it begins at the current position
        select b.missed, b.skipped, b.catch_up_id into missed, skipped, catch_up_id
          from postbus.bound_catch_up(_made, topic, _made.subscribed, 'start') as b;
        perform postbus.note_joining(topic, _made.id);
    end if;
end $$;

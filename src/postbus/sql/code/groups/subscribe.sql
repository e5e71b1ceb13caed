-- Registers a group on a topic, once. A group that is registered keeps its position, and its state unless it is DEAD. Has to be
-- called in a transaction of its own.
--
-- Messages ahead of the group when it starts, or returns after it was DEAD, are worked through within the limits of catch_up: see
-- catch_up_options and bound_catch_up.
--
-- FROM_NOW: every message whose transaction commits after this call has returned, including transactions that are open already.
-- FROM_BEGINNING: all retained messages. FROM_TIMESTAMP, FROM_MESSAGE_ID: from start_at or start_id on.
--
-- The audit log has an entry if a caller who may manage groups registers a new group, brings one back, or changes one.
--
-- Writes: subscription; see begin_subscription and note_action.
create or replace function postbus.subscribe(
    topic      text,
    group_name text,
    start      text default 'FROM_NOW',
    start_at   timestamptz default null,
    start_id   bigint default null,
    on_failure text default 'block',
    catch_up   jsonb default '{}',
    out subscription_id bigint,
    out state           text,
    out is_new          boolean,
    out lease           interval,
    out heartbeat       interval,
    out missed          bigint,
    out skipped         bigint,
    out catch_up_id     bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic    postbus.topic := postbus.topic_options(topic);
    _position postbus.log_position;
    _new      postbus.subscription;
    _before   jsonb;
begin
    perform postbus.check_group(group_name, on_failure, catch_up);
    perform postbus.check_is_log(_topic, topic, group_name);
    if not postbus.is_a_time(start_at) then
        perform postbus.refuse('PB402', format('start_at is %s', start_at), 'give a point in time between the years 1 and 9999');
    end if;
    is_new := false;
    lease := _topic.lease;
    heartbeat := _topic.heartbeat_interval;
    select s.id, s.state into subscription_id, subscribe.state from postbus.subscription s
     where s.topic_id = _topic.id and s.group_name = subscribe.group_name and s.state <> 'CANCELLED' and s.catch_up_of is null;
    if subscription_id is null then
        _position := postbus.take_position(_topic.storage_id);
        _new.group_name := group_name;
        _new.start := start;
        _new.start_at := start_at;
        _new.start_id := start_id;
        _new.subscribed := _position;
        _new.on_failure := on_failure;
        _new.catch_up := catch_up;
        select b.subscription_id, 'ACTIVE', b.missed, b.skipped, b.catch_up_id
          into subscription_id, subscribe.state, missed, skipped, subscribe.catch_up_id
          from postbus.begin_subscription(_topic, _new, postbus.start_cursor(_topic, start, start_at, start_id, _position)) as b;
        is_new := subscription_id is not null;
        if is_new then
            if postbus.is_manager() then
                perform postbus.note_action('group.subscribe', topic, group_name, after => jsonb_strip_nulls(jsonb_build_object(
                    'start', start, 'start_at', start_at, 'start_id', start_id, 'on_failure', on_failure, 'catch_up', catch_up)));
            end if;
            return;
        end if;
        select s.id, s.state into subscription_id, subscribe.state from postbus.subscription s
         where s.topic_id = _topic.id and s.group_name = subscribe.group_name and s.state <> 'CANCELLED' and s.catch_up_of is null;
    end if;
    _before := (select jsonb_build_object('state', s.state, 'on_failure', s.on_failure, 'catch_up', s.catch_up)
                  from postbus.subscription s where s.id = subscribe.subscription_id);
    if state = 'DEAD' then
        select r.missed, r.skipped, r.catch_up_id into missed, skipped, subscribe.catch_up_id
          from postbus.bring_back(array[subscription_id], catch_up => subscribe.catch_up) as r;
    end if;
    update postbus.subscription s
       set seen_at = clock_timestamp(), on_failure = subscribe.on_failure, catch_up = subscribe.catch_up, missed = 0, missed_at = null
     where s.id = subscribe.subscription_id
    returning s.state into subscribe.state;
    if postbus.is_manager() then
        perform postbus.note_change('group.subscribe', _before, jsonb_build_object('state', state, 'on_failure', on_failure, 'catch_up', catch_up),
                                    topic, group_name);
    end if;
end $$;

-- Registers a group on a topic, once: a group that is registered keeps its place, and its state unless it is DEAD.
-- To be called in a transaction of its own.
--
-- What it has before it when it starts, or comes back from the dead, is worked through within the bounds of catch_up:
-- see catch_up_options and bound_catch_up.
--
-- FROM_NOW: every message whose transaction commits after this has returned, also of transactions that are open
-- already. FROM_BEGINNING: all that is retained. FROM_TIMESTAMP, FROM_MESSAGE_ID: from start_at or start_id on.
--
-- Writes: subscription, lane, cursor.
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
    _topic  postbus.topic := postbus.topic_options(topic);
    _place  postbus.log_place;
    _cursor postbus.log_cursor;
    _found  postbus.subscription;
begin
    perform postbus.check_group_name(group_name);
    if _topic.storage_id is null then
        perform postbus.refuse('PB432', format('topic %L is a QUEUE', topic),
            case when _topic.name is null then format('create it with semantics PUB_SUB: postbus topics create %s --semantics PUB_SUB', topic)
                 else format('make it PUB_SUB: postbus topics migrate %s --to PUB_SUB --group %s', topic, group_name) end);
    elsif on_failure is null or on_failure not in ('block', 'pass') then
        perform postbus.refuse('PB402', format('on_failure %s is not known', coalesce(quote_literal(on_failure), 'null')), 'use block or pass');
    end if;
    perform postbus.check_cluster();
    perform postbus.catch_up_options(catch_up);
    is_new := false;
    lease := _topic.lease;
    heartbeat := _topic.heartbeat_interval;
    select s.id, s.state into subscription_id, subscribe.state from postbus.subscription s
     where s.topic_id = _topic.id and s.group_name = subscribe.group_name and s.state <> 'CANCELLED' and s.catch_up_of is null;
    if subscription_id is null then
        _place := postbus.here(_topic.storage_id);
        _cursor := postbus.start_cursor(_topic, start, start_at, start_id, _place);
        insert into postbus.subscription (topic_id, group_name, start, start_at, start_id, subscribed, on_failure, catch_up)
        values (_topic.id, subscribe.group_name, subscribe.start, subscribe.start_at, subscribe.start_id, _place, subscribe.on_failure,
                subscribe.catch_up)
        on conflict do nothing
        returning * into _found;
        subscription_id := _found.id;
        subscribe.state := _found.state;
        is_new := subscription_id is not null;
        if is_new then
            insert into postbus.lane (subscription_id, lane)
            select subscribe.subscription_id, lane.n from generate_series(0, _topic.lanes - 1) as lane (n);
            insert into postbus.cursor (subscription_id, lane, number, cursor, moved)
            select subscribe.subscription_id, lane.n, 1, _cursor, 'start' from generate_series(0, _topic.lanes - 1) as lane (n);
            perform postbus.set_passed_before(subscription_id, _topic, _cursor, _place);
            if start <> 'FROM_NOW' then
                select b.missed, b.skipped, b.catch_up_id into missed, skipped, subscribe.catch_up_id
                  from postbus.bound_catch_up(_found, _topic, _place, 'start') as b;
            end if;
            return;
        end if;
        select s.id, s.state into subscription_id, subscribe.state from postbus.subscription s
         where s.topic_id = _topic.id and s.group_name = subscribe.group_name and s.state <> 'CANCELLED' and s.catch_up_of is null;
    elsif state = 'DEAD' then
        select r.missed, r.skipped, r.catch_up_id into missed, skipped, subscribe.catch_up_id
          from postbus.resurrect(array[subscription_id], catch_up => subscribe.catch_up) as r;
    end if;
    update postbus.subscription s
       set seen_at = clock_timestamp(), on_failure = subscribe.on_failure, catch_up = subscribe.catch_up, missed = 0, missed_at = null
     where s.id = subscribe.subscription_id
    returning s.state into subscribe.state;
end $$;

-- Registers a group on a topic, once: a group that is registered keeps its place, and its state unless it is DEAD.
-- To be called in a transaction of its own.
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
    out subscription_id bigint,
    out state           text,
    out is_new          boolean,
    out lease           interval,
    out heartbeat       interval
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic  postbus.topic := postbus.topic_options(topic);
    _place  postbus.log_place;
    _cursor postbus.log_cursor;
begin
    perform postbus.check_group_name(group_name);
    if _topic.storage_id is null then
        perform postbus.refuse('PB432', format('topic %L is a QUEUE', topic),
            format('create it with semantics PUB_SUB: postbus topics create %s --semantics PUB_SUB', topic));
    elsif on_failure is null or on_failure not in ('block', 'pass') then
        perform postbus.refuse('PB402', format('on_failure %s is not known', coalesce(quote_literal(on_failure), 'null')), 'use block or pass');
    end if;
    perform postbus.check_cluster();
    is_new := false;
    lease := _topic.lease;
    heartbeat := _topic.heartbeat_interval;
    select s.id, s.state into subscription_id, subscribe.state from postbus.subscription s
     where s.topic_id = _topic.id and s.group_name = subscribe.group_name and s.state <> 'CANCELLED';
    if subscription_id is null then
        _place := postbus.here(_topic.epoch_sequence);
        _cursor := postbus.start_cursor(_topic, start, start_at, start_id, _place);
        insert into postbus.subscription (topic_id, group_name, start, start_at, start_id, subscribed, on_failure)
        values (_topic.id, subscribe.group_name, subscribe.start, subscribe.start_at, subscribe.start_id, _place, subscribe.on_failure)
        on conflict do nothing
        returning id, subscription.state into subscription_id, subscribe.state;
        is_new := subscription_id is not null;
        if is_new then
            insert into postbus.lane (subscription_id, lane)
            select subscribe.subscription_id, lane.n from generate_series(0, _topic.lanes - 1) as lane (n);
            insert into postbus.cursor (subscription_id, lane, number, cursor)
            select subscribe.subscription_id, lane.n, 1, _cursor from generate_series(0, _topic.lanes - 1) as lane (n);
            perform postbus.set_passed_before(subscription_id, _topic, _cursor, _place);
            return;
        end if;
        select s.id, s.state into subscription_id, subscribe.state from postbus.subscription s
         where s.topic_id = _topic.id and s.group_name = subscribe.group_name and s.state <> 'CANCELLED';
    end if;
    update postbus.subscription s
       set seen_at = clock_timestamp(), on_failure = subscribe.on_failure,
           state = case when s.state = 'DEAD' then 'ACTIVE' else s.state end,
           state_changed_at = case when s.state = 'DEAD' then clock_timestamp() else s.state_changed_at end
     where s.id = subscribe.subscription_id
    returning s.state into subscribe.state;
end $$;

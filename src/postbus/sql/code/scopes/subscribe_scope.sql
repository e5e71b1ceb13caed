-- Subscribes a group to a scope: to all topics in it, and to those that match it later. The first call records the group's start.
-- Later calls change on_failure and catch_up if they give them, bring DEAD subscriptions back, and join topics that the group has
-- not joined yet. Returns the group's subscriptions in the scope. Has to be called in a transaction of its own.
--
-- mode new: messages of the last look_back, and all that are committed after this call has returned; all: all retained messages;
-- timestamp: messages published at start_at or later, and all that are committed later; message: the message with start_id, and
-- those with a higher id, of one topic or of one key of it.
--
-- The audit log has entries as for subscribe.
--
-- Writes: scope, subscription; see join_topic, bring_back and note_action.  Locks: an advisory lock for the transaction, for the
-- first call.
create or replace function postbus.subscribe_scope(
    group_name text,
    topic      text default null,
    key        text default null,
    namespace  text default null,
    task       text default null,
    pattern    text default null,
    mode       text default 'all',
    start_at   timestamptz default null,
    look_back  interval default '4 seconds',
    on_failure text default null,       -- block
    catch_up   jsonb default null,
    start_id   bigint default null
) returns table (
    topic_name      text,
    subscription_id bigint,
    state           text,
    is_new          boolean,
    lease           interval,
    heartbeat       interval,
    max_attempts    integer,
    lanes           integer,
    keys            text[],
    missed          bigint,
    skipped         bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _scope      postbus.scope;
    _is_new     boolean;
    _is_changed boolean := false;    -- the options of the record
    _dead       bigint[];
    _sequences  jsonb;
    _position   postbus.log_position;
    _topic      postbus.topic;
    _joined     record;
    _results    jsonb := '{}';       -- by subscription: whether it is new, how many messages it missed, and how many of these it skips
begin
    perform postbus.check_group(group_name, coalesce(on_failure, 'block'), coalesce(catch_up, '{}'));
    perform postbus.check_scope(topic, key, namespace, task, pattern);
    if key is not null and catch_up ->> 'max_messages' is not null then     -- messages of other keys would be counted, and its own skipped
        perform postbus.refuse('PB402', 'max_messages is for groups of whole topics',
            format('leave max_messages out for key %L, or let the group begin later: mode timestamp with start_at', key));
    end if;
    if topic is not null then
        perform postbus.check_is_log(postbus.topic_options(topic), topic, group_name);
    end if;
    _scope := postbus.as_scope(group_name, topic, key, namespace, task, pattern);
    _is_new := _scope.id is null;
    -- A position of each storage, as in take_position: sequences first, then the snapshot, then an own transaction id.
    select jsonb_object_agg(s.id, postbus.last_sequence(s.id)) into _sequences from postbus.log_storage s;
    _position.snapshot := pg_current_snapshot();
    _dead := array(select f.subscription_id from postbus.topics_in_scope(_scope) as f where f.state = 'DEAD');
    if _is_new or _dead <> '{}' or exists (select from postbus.topics_in_scope(_scope) as f where f.subscription_id is null) then
        perform postbus.check_fresh();
    end if;
    if _is_new then
        _scope := postbus.new_scope(_scope, mode, start_at, look_back, start_id);
    end if;
    if _dead <> '{}' then
        select coalesce(jsonb_object_agg(r.subscription_id, jsonb_build_array(false, r.missed, r.skipped)), '{}') into _results
          from postbus.bring_back(_dead, catch_up => subscribe_scope.catch_up) as r;
    end if;
    if _is_new then
        perform pg_advisory_xact_lock(hashtext('postbus.scope'));       -- see join_scopes
        insert into postbus.scope (group_name, topic, key, namespace, task, pattern, mode, start_at, start_id, recorded_at, snapshot, on_failure,
                                   catch_up)
        values (_scope.group_name, _scope.topic, _scope.key, _scope.namespace, _scope.task, _scope.pattern, _scope.mode, _scope.start_at,
                _scope.start_id, _scope.recorded_at, _scope.snapshot, coalesce(subscribe_scope.on_failure, 'block'),
                coalesce(subscribe_scope.catch_up, '{}'))
        on conflict do nothing;
        _is_new := found;
        _scope := postbus.as_scope(group_name, topic, key, namespace, task, pattern);       -- ours, or that of a session that was faster
    else
        update postbus.scope c
           set on_failure = coalesce(subscribe_scope.on_failure, c.on_failure), catch_up = coalesce(subscribe_scope.catch_up, c.catch_up)
         where c.id = _scope.id
           and (c.on_failure, c.catch_up)
               <> (coalesce(subscribe_scope.on_failure, c.on_failure), coalesce(subscribe_scope.catch_up, c.catch_up));
        _is_changed := found;
    end if;
    for _topic in
        select t.* from postbus.topics_in_scope(_scope) as f join postbus.topic t on t.id = f.topic_id
         where f.subscription_id is null or f.keys is not null or _is_new order by t.name
    loop
        _position.sequence := coalesce((_sequences ->> _topic.storage_id::text)::bigint, 0);
        _position.txid := pg_current_xact_id();
        select * into _joined from postbus.join_topic(_scope, _topic, _position, _is_new);
        if _joined.subscription_id is not null then
            _results := _results || jsonb_build_object(_joined.subscription_id, jsonb_build_array(true, _joined.missed, _joined.skipped));
        end if;
    end loop;
    if (_is_new or _is_changed or _results <> '{}') and postbus.is_manager() then
        perform postbus.note_action('group.subscribe', topic, group_name, postbus.scope_target(_scope),
            (select count(*) from jsonb_object_keys(_results)), after => jsonb_strip_nulls(jsonb_build_object(
                'mode', _scope.mode, 'start_at', _scope.start_at, 'start_id', _scope.start_id, 'on_failure', _scope.on_failure,
                'catch_up', _scope.catch_up)));
    end if;
    return query
    with known as (
        update postbus.subscription s
           set seen_at = clock_timestamp(), on_failure = coalesce(subscribe_scope.on_failure, s.on_failure),
               catch_up = coalesce(subscribe_scope.catch_up, s.catch_up), missed = 0, missed_at = null
          from postbus.topics_in_scope(_scope) as f
         where s.id = f.subscription_id
        returning s.id, s.topic_id, s.state, s.keys
    )
    select t.name, k.id, k.state, coalesce((result.part ->> 0)::boolean, false), t.lease, t.heartbeat_interval, t.max_attempts, t.lanes, k.keys,
           (result.part ->> 1)::bigint, (result.part ->> 2)::bigint
      from known k
      join postbus.topic t on t.id = k.topic_id
     cross join lateral (select _results -> k.id::text as part) as result
     order by t.name;
end $$;

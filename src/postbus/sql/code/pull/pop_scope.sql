-- Leases up to max_count messages for a group from the topics of a namespace, of a task, or with names that fit a pattern: from
-- the topic in which a message waits longest. See pop, and subscribe_scope, which has to be called first.
--
-- The pop is a sign of life of the group in all of these topics. In topics where the group is DEAD, it comes back, for which the
-- transaction must not have written.
--
-- Writes: scope_pop; see pop_group and note_life.
create or replace function postbus.pop_scope(
    group_name text,
    namespace  text default null,
    task       text default null,
    pattern    text default null,
    member     text default 'somebody',
    max_count  integer default 1,
    lease      interval default null,
    auto_ack   boolean default false,
    max_bytes  bigint default 16777216
) returns setof postbus.popped
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _now   timestamptz := clock_timestamp();
    _scope postbus.scope;
    _topic record;
    _row   postbus.popped;
    _end   postbus.popped;
    _quiet bigint[];
    _dead  jsonb := '{}';       -- the positions of subscriptions that came back
begin
    perform postbus.check_cluster();
    perform postbus.check_scope(null, null, namespace, task, pattern);
    perform postbus.check_member(member);
    perform postbus.check_pop(max_count, lease);
    max_count := least(max_count, 10000);
    max_bytes := least(max_bytes, 67108864);
    _scope := postbus.as_scope(group_name, null, null, namespace, task, pattern);
    if _scope.id is null then
        perform postbus.refuse('PB406', format('group %L has no subscription to %s', group_name,
                                               case when namespace is not null then format('namespace %L', namespace)
                                                    when task is not null then format('task %L', task) else format('pattern %L', pattern) end),
            format('subscribe it first: postbus groups subscribe %s --%s %s', group_name,
                   case when namespace is not null then 'namespace' when task is not null then 'task' else 'pattern' end,
                   coalesce(namespace, task, quote_literal(pattern))));
    end if;
    _end.more := false;
    _quiet := array(select s.id from postbus.topics_in_scope(_scope) as f
                      join postbus.subscription s on s.id = f.subscription_id
                      join postbus.topic t on t.id = s.topic_id
                     where f.state = 'DEAD'
                        or f.state = 'ACTIVE' and (s.seen_at < _now - t.heartbeat_interval / 2 or s.stopped_at >= s.seen_at));
    if exists (select from postbus.subscription s where s.id = any (_quiet) and s.state = 'DEAD') then
        perform postbus.check_fresh();
    end if;
    if _quiet <> '{}' then
        select coalesce(jsonb_object_agg(n.subscription_id, n.position), '{}') into _dead from postbus.note_life(_quiet, _now) as n;
    end if;
    for _topic in
        select f.topic_name, f.subscription_id, buffer.due_at, waiting.since
          from postbus.topics_in_scope(_scope) as f
          left join lateral (select r.due_at from postbus.deferred r
                              where r.subscription_id = f.subscription_id and not r.parked order by r.due_at limit 1) as buffer on true
         cross join lateral (select case when _dead ? f.subscription_id::text then '-infinity'
                                         when f.state = 'ACTIVE' then least(case when buffer.due_at <= _now then buffer.due_at end,
                                                                            postbus.news_since(f.subscription_id)) end as since) as waiting
         where waiting.since is not null or buffer.due_at is not null
         order by waiting.since nulls last
    loop
        _end.next_due := least(_end.next_due, case when _topic.due_at > _now then _topic.due_at - _now end);
        continue when _topic.since is null;
        for _row in
            select * from postbus.pop_group(_topic.topic_name, group_name, member, max_count, lease, null, auto_ack, null, max_bytes, _now,
                                            _dead ->> _topic.subscription_id::text)
        loop
            if _row.ids is null then
                _end.more := _end.more or _row.more;
                _end.next_due := least(_end.next_due, _row.next_due);
            else
                if _row.token is not null then
                    insert into postbus.scope_pop (scope_id, token) values (_scope.id, _row.token);     -- see scopes_in_hand
                end if;
                return next _row;
                _end.more := true;      -- other topics may have messages, too
            end if;
        end loop;
        exit when _end.more;
    end loop;
    return next _end;
end $$;

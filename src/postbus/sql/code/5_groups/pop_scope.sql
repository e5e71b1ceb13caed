-- Takes up to max_count messages for a group from the topics in a scope, for whoever asks: see pop, and for the scope and where
-- the group starts in it subscribe_scope. At first contact the group is subscribed; then, and where one was DEAD, nothing
-- comes yet, but `more` tells to ask again.
--
-- Topics take turns: next_floor is the one that came last, and the next pop, to which it is handed back, begins after it.
--
-- Writes: see subscribe_scope, resurrect and pop_group.
create or replace function postbus.pop_scope(
    group_name text,
    topic      text default null,
    key        text default null,
    namespace  text default null,
    task       text default null,
    pattern    text default null,
    mode       text default 'all',
    start_at   timestamptz default null,
    look_back  interval default '4 seconds',
    member     text default 'somebody',
    max_count  integer default 1,
    lease      interval default null,
    auto_ack   boolean default false,
    floor      text default null,
    max_bytes  bigint default 16777216,
    as_of      timestamptz default clock_timestamp()
) returns setof postbus.popped
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _scope postbus.scope := postbus.as_scope(group_name, topic, key, namespace, task, pattern);
    _topic record;
    _row   postbus.popped;
    _end   postbus.popped;
    _dead  bigint[];
begin
    perform postbus.check_pop(max_count, lease);
    _end.more := false;
    _end.next_floor := floor;
    _dead := array(select f.subscription_id from postbus.topics_in_scope(_scope) as f where f.state = 'DEAD');
    if _scope.id is null then
        perform from postbus.subscribe_scope(group_name, topic, key, namespace, task, pattern, mode, start_at, look_back);
        _end.more := true;
    elsif _dead <> '{}' then
        perform from postbus.resurrect(_dead);
        _end.more := true;
    end if;
    for _topic in
        select f.topic_name as name from postbus.topics_in_scope(_scope) as f
         where f.state = 'ACTIVE' and not _end.more order by f.topic_name <= floor, f.topic_name
    loop
        if max_count <= 0 or max_bytes <= 0 then
            _end.more := true;
            exit;
        elsif pg_current_xact_id_if_assigned() is not null then        -- what is in the log of this one cannot be looked at
            _end.more := true;
        end if;
        for _row in
            select * from postbus.pop_group(_topic.name, group_name, member, max_count, lease, key, auto_ack, null, max_bytes, as_of)
        loop
            if _row.ids is not null then
                return next _row;
                max_count := max_count - cardinality(_row.ids);
                max_bytes := max_bytes - (select sum(octet_length(p)) from unnest(_row.payloads) as p);
                _end.next_floor := _topic.name;
            else
                _end.more := _end.more or _row.more;
                _end.next_due := least(_end.next_due, _row.next_due);
            end if;
        end loop;
    end loop;
    _end.next_due := case when not _end.more then _end.next_due end;
    return next _end;
end $$;

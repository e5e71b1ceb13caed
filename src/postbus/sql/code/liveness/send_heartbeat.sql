-- Notes that a group lives, for pulling consumers that neither pop, settle nor extend a lease for a while: in the topic, or in all
-- topics of the namespace, of the task, or with names that fit the pattern, that the group is subscribed to. In topics where it is
-- DEAD, it comes back. Has to be called in a transaction of its own.
--
-- Returns a row for each topic: its name, the group's state in it now, and, if the group was DEAD, how many messages it missed,
-- and how many of these it skips.
--
-- stopped_by makes this the last sign of life of a consumer with that name. Unless another process consumes for the group, this is
-- a planned stop of the group, until a consumer pops, settles or extends a lease again. A DEAD group stays DEAD.
--
-- Writes: see note_life and note_stop.  Locks: see note_life; for a stop, subscription rows in the order of their ids.
create or replace function postbus.send_heartbeat(
    group_name text,
    topic      text default null,
    namespace  text default null,
    task       text default null,
    pattern    text default null,
    stopped_by text default null
) returns table (topic_name text, state text, missed bigint, skipped bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _now   timestamptz := clock_timestamp();
    _scope postbus.scope;
    _ids   bigint[];
begin
    perform postbus.check_cluster();
    perform postbus.check_scope(topic, null, namespace, task, pattern);
    _scope := case when topic is null then postbus.existing_scope(group_name, null, null, namespace, task, pattern)
                   else postbus.as_scope(group_name, topic, null, null, null, null) end;
    _ids := array(select f.subscription_id from postbus.topics_in_scope(_scope) as f where f.subscription_id is not null);
    if topic is not null and _ids = '{}' then
        perform postbus.existing_subscription(topic, group_name);       -- raises the error
    end if;
    if stopped_by is not null then
        perform from postbus.subscription s where s.id = any (_ids) order by s.id for no key update;
        perform postbus.note_stop(_ids, left(stopped_by, 200), _now);
    end if;
    return query
    with back as materialized (
        select n.subscription_id, n.missed, n.skipped from postbus.note_life(_ids, _now) as n where stopped_by is null
    )
    select t.name, case when b.subscription_id is null then s.state else 'ACTIVE' end, b.missed, b.skipped
      from unnest(_ids) as one (id)
      join postbus.subscription s on s.id = one.id
      join postbus.topic t on t.id = s.topic_id
      left join back b on b.subscription_id = s.id
     order by t.name;
end $$;

-- Finds groups of a log storage that no longer send heartbeats. A group becomes DEAD if it gave no sign of life for the topic's
-- heartbeat_timeout, and three checks in a row have found no new one: so no group dies of a database outage during which no process
-- could send heartbeats. Checks are detection_interval apart, or a fifth of the timeout if that is shorter. Returns the number of
-- groups that died.
--
-- Can be killed anywhere and called again: which groups are DEAD follows from the heartbeats alone. The messages that a DEAD group
-- is required for, and those it keeps in the log, follow from its state; this transaction only notes the end of the log at its
-- death.
--
-- A pulling group lives while one of its consumers has messages in hand, and by the signs that settlements leave. If these
-- messages were popped from a scope, it lives in all topics of the scope.
--
-- A group whose row is locked is skipped.
--
-- Writes: subscription, sign_of_life, scope_pop, stretch, group_event.  Locks: rows of subscription (skip locked).
create or replace function postbus.detect_dead(storage_id integer, as_of timestamptz) returns bigint
language plpgsql as $$
declare
    _every  interval := (select w.detection_interval from postbus.sweep_setting w);
    _scopes bigint[] := postbus.scopes_in_hand(as_of);
    _living bigint[];        -- pulling groups that live
    _quiet  bigint[];        -- groups without a sign of life for longer than a heartbeat takes
    _dead   bigint[];
begin
    _living := array(
        select s.id from postbus.subscription s
          join postbus.topic t on t.id = s.topic_id
         where t.storage_id = detect_dead.storage_id and s.state = 'ACTIVE' and s.catch_up_of is null
           and (s.id = any (array(select sign.subscription_id from postbus.sign_of_life sign))
                or s.seen_at < as_of - 1.5 * t.heartbeat_interval
                   and (postbus.has_in_hand(s.id, as_of)
                        or exists (select from postbus.scope c
                                    where c.id = any (_scopes) and c.group_name = s.group_name
                                      and (c.id = s.scope_id or postbus.in_scope(c, t)))))
         order by s.id for no key update of s skip locked);
    if _living <> '{}' then
        with sign as (
            delete from postbus.sign_of_life sign where sign.subscription_id = any (_living) returning sign.subscription_id, sign.at
        ), living as (
            select one.id, coalesce(max(sign.at), as_of) as at
              from unnest(_living) as one (id) left join sign on sign.subscription_id = one.id
             group by one.id
        )
        update postbus.subscription s set seen_at = living.at, missed = 0, missed_at = null
          from living where s.id = living.id and s.seen_at < living.at;
    end if;
    delete from postbus.sign_of_life sign
     where not exists (select from postbus.subscription s where s.id = sign.subscription_id and s.state = 'ACTIVE');
    _quiet := array(
        select s.id from postbus.subscription s
          join postbus.topic t on t.id = s.topic_id
         where t.storage_id = detect_dead.storage_id and s.state = 'ACTIVE' and s.catch_up_of is null
           and s.seen_at < as_of - 1.5 * t.heartbeat_interval
         order by s.id for no key update of s skip locked);
    update postbus.subscription s set missed = s.missed + 1, missed_at = as_of
      from postbus.topic t
     where s.id = any (_quiet) and t.id = s.topic_id
       and (s.missed_at is null or s.missed_at <= as_of - least(t.heartbeat_timeout / 5, _every));
    with late as (
        update postbus.subscription s set state = 'DEAD', state_changed_at = as_of
          from postbus.topic t
         where s.id = any (_quiet) and t.id = s.topic_id
           and s.seen_at < as_of - t.heartbeat_timeout and s.missed >= 3
        returning s.id, t.name as topic, s.group_name, s.seen_at, s.stopped_at, s.stopped_by
    ), history as (
        update postbus.subscription s set state = 'DEAD', state_changed_at = as_of
          from late where s.catch_up_of = late.id and s.state = 'ACTIVE'
    ), noted as (
        insert into postbus.group_event (at, name, topic, group_name, fields)
        select as_of, 'group.dead', late.topic, late.group_name,
               jsonb_build_object('after', case when late.stopped_at >= late.seen_at then 'stop' else 'silence' end,
                                  'silent_seconds', round(extract(epoch from as_of - late.seen_at)),
                                  'lag', (select before.messages from postbus.group_lag(late.id) as before))
               || case when late.stopped_at >= late.seen_at then jsonb_build_object('stopped_by', late.stopped_by) else '{}' end
          from late
    )
    select array_agg(late.id) into _dead from late;
    perform postbus.note_death(_dead) where _dead is not null;
    return coalesce(cardinality(_dead), 0);
end $$;

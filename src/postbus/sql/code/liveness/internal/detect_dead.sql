-- Finds groups of a log storage that no longer send heartbeats. A group is DEAD if it was not heard of for the topic's
-- heartbeat_timeout, and three looks in a row have found nothing new: so no group dies of a database outage during which nobody
-- could send heartbeats. Looks are detection_interval apart, or a fifth of the timeout if that is shorter. Returns how many died.
--
-- Can be killed anywhere and called again: which groups are DEAD follows from the heartbeats alone. What a DEAD group is required
-- for, and what it keeps in the log, is computed from its state; the same transaction only notes the end of the log at its death.
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
    _every interval := (select w.detection_interval from postbus.sweep_setting w);
    _scopes bigint[] := postbus.scopes_in_hand(as_of);
    _heard bigint[];        -- those that pull, and live
    _quiet bigint[];        -- not heard of for longer than a heartbeat takes
    _dead  bigint[];
begin
    _heard := array(
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
    if _heard <> '{}' then
        with sign as (
            delete from postbus.sign_of_life sign where sign.subscription_id = any (_heard) returning sign.subscription_id, sign.at
        ), heard as (
            select one.id, coalesce(max(sign.at), as_of) as at
              from unnest(_heard) as one (id) left join sign on sign.subscription_id = one.id
             group by one.id
        )
        update postbus.subscription s set seen_at = heard.at, missed = 0, missed_at = null
          from heard where s.id = heard.id and s.seen_at < heard.at;
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
    ), told as (
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

-- Finds groups of a storage that send no heartbeats any more. A group is DEAD when it was not heard of for the
-- topic's heartbeat_timeout, and three looks in a row have found nothing new: so groups do not die of an outage of the
-- database during which nobody could send heartbeats. Looks are detection_interval apart, or a fifth of the timeout if
-- that is shorter. Returns how many died.
--
-- Can be killed anywhere and called again: what is DEAD follows from the heartbeats alone, and nothing else has to be
-- changed for it. What a DEAD group is required for, and what it holds, is computed from its state.
--
-- Writes: subscription.
create or replace function postbus.detect_dead(storage_id integer, as_of timestamptz) returns bigint
language plpgsql as $$
declare
    _every interval := (select w.detection_interval from postbus.sweep_setting w);
    _count bigint;
begin
    update postbus.subscription s set missed = s.missed + 1, missed_at = as_of
      from postbus.topic t
     where t.id = s.topic_id and t.storage_id = detect_dead.storage_id and s.state = 'ACTIVE' and s.catch_up_of is null
       and s.seen_at < as_of - 1.5 * t.heartbeat_interval
       and (s.missed_at is null or s.missed_at <= as_of - least(t.heartbeat_timeout / 5, _every));
    with late as (
        update postbus.subscription s set state = 'DEAD', state_changed_at = as_of
          from postbus.topic t
         where t.id = s.topic_id and t.storage_id = detect_dead.storage_id and s.state = 'ACTIVE' and s.catch_up_of is null
           and s.seen_at < as_of - t.heartbeat_timeout and s.missed >= 3
        returning s.id
    ), history as (
        update postbus.subscription s set state = 'DEAD', state_changed_at = as_of
          from late where s.catch_up_of = late.id and s.state = 'ACTIVE'
    )
    select count(*) into _count from late;
    return _count;
end $$;

-- Notes that groups have a process that consumes for them, in one statement for all of them. Counters of members are added up;
-- negative ones are refused. A DEAD group comes back: the result says how many messages it missed, see bring_back.
--
-- A group whose row another session has locked is left for the next call, so that it does not delay the heartbeats of others.
--
-- Writes: subscription, member, group_tally.  Locks: subscription rows (skip locked), in the order of their ids.
create or replace function postbus.group_heartbeat(
    subscription_ids bigint[],
    member_of        bigint[],
    members          text[],
    processed        bigint[],
    failed           bigint[],
    filtered         bigint[],
    in_flight        bigint[],
    handling_seconds double precision[]
) returns table (subscription_id bigint, missed bigint, skipped bigint, catch_up_id bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _now  timestamptz := clock_timestamp();
    _dead bigint[] := array(select s.id from postbus.subscription s where s.id = any (subscription_ids) and s.state = 'DEAD');
begin
    if exists (select from unnest(members, group_heartbeat.processed, group_heartbeat.failed, group_heartbeat.filtered,
                                  group_heartbeat.in_flight, group_heartbeat.handling_seconds)
                           as one (name, processed, failed, filtered, in_flight, handling_seconds)
                where (one.processed between 0 and 1e12 and one.failed between 0 and 1e12 and one.filtered between 0 and 1e12
                       and one.in_flight between 0 and 1e12 and one.handling_seconds between 0 and 1e12) is not true) then
        perform postbus.refuse('PB402', 'a counter of a member is negative, too large or no number', 'give numbers from 0 on');
    end if;
    perform postbus.check_label(one.name) from unnest(members) as one (name);
    if _dead <> '{}' then
        return query select r.subscription_id, r.missed, r.skipped, r.catch_up_id from postbus.bring_back(_dead) as r;
    end if;
    with reached as (
        select s.id from postbus.subscription s
         where s.id = any (subscription_ids) and s.state = 'ACTIVE' order by s.id for no key update skip locked)
    update postbus.subscription s set seen_at = _now, missed = 0, missed_at = null from reached where s.id = reached.id;
    insert into postbus.member as known (subscription_id, name, processed, failed, filtered, in_flight, handling_seconds, seen_at)
    select one.subscription_id, one.name, one.processed, one.failed, one.filtered, one.in_flight, one.handling_seconds, _now
      from unnest(member_of, members, group_heartbeat.processed, group_heartbeat.failed, group_heartbeat.filtered, group_heartbeat.in_flight,
                  group_heartbeat.handling_seconds)
           as one (subscription_id, name, processed, failed, filtered, in_flight, handling_seconds)
     where exists (select from postbus.subscription s where s.id = one.subscription_id)      -- not of a group that was removed meanwhile
     order by one.subscription_id, one.name
    on conflict on constraint member_pkey do update
       set processed = known.processed + excluded.processed, failed = known.failed + excluded.failed,
           filtered = known.filtered + excluded.filtered, in_flight = excluded.in_flight,
           handling_seconds = known.handling_seconds + excluded.handling_seconds, seen_at = excluded.seen_at;
    insert into postbus.group_tally (subscription_id, at, handled, failed)
    select one.subscription_id, _now, sum(one.handled), sum(one.failed)
      from unnest(member_of, group_heartbeat.processed, group_heartbeat.failed) as one (subscription_id, handled, failed)
     where exists (select from postbus.subscription s where s.id = one.subscription_id)
     group by one.subscription_id having sum(one.handled + one.failed) > 0;
end $$;

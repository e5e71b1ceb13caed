-- Tells that groups have a process that works for them, in one statement for all of them. A DEAD one lives again.
-- Counters of members are added up.
--
-- Writes: subscription, member.  Locks: subscription rows, in the order of their ids.
create or replace function postbus.group_heartbeat(
    subscription_ids bigint[],
    member_of        bigint[],
    members          text[],
    processed        bigint[],
    failed           bigint[],
    filtered         bigint[],
    in_flight        bigint[],
    as_of            timestamptz default clock_timestamp()
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform from postbus.subscription s where s.id = any (subscription_ids) order by s.id for no key update;
    update postbus.subscription s
       set seen_at = as_of,
           state = case when s.state = 'DEAD' then 'ACTIVE' else s.state end,
           state_changed_at = case when s.state = 'DEAD' then as_of else s.state_changed_at end
     where s.id = any (subscription_ids) and s.state in ('ACTIVE', 'DEAD');
    insert into postbus.member as known (subscription_id, name, processed, failed, filtered, in_flight, seen_at)
    select one.subscription_id, one.name, one.processed, one.failed, one.filtered, one.in_flight, as_of
      from unnest(member_of, members, group_heartbeat.processed, group_heartbeat.failed, group_heartbeat.filtered, group_heartbeat.in_flight)
           as one (subscription_id, name, processed, failed, filtered, in_flight)
     order by one.subscription_id, one.name
    on conflict on constraint member_pkey do update
       set processed = known.processed + excluded.processed, failed = known.failed + excluded.failed,
           filtered = known.filtered + excluded.filtered, in_flight = excluded.in_flight, seen_at = excluded.seen_at;
end $$;

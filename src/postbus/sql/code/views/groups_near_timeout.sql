-- ACTIVE groups without a heartbeat for a share of their heartbeat timeout: there is still time to look after them.
create or replace function postbus.groups_near_timeout(share double precision default 0.8)
returns table (topic text, group_name text, heartbeat_age interval, heartbeat_timeout interval)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select t.name, s.group_name, clock_timestamp() - s.seen_at, t.heartbeat_timeout
      from postbus.subscription s
      join postbus.topic t on t.id = s.topic_id
     where s.state = 'ACTIVE' and s.catch_up_of is null and s.seen_at < clock_timestamp() - share * t.heartbeat_timeout
     order by s.seen_at
$$;

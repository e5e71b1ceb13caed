-- History that groups work through, or have worked through. rate is that of the last ten seconds, in messages per second; eta is
-- when it ends at that rate.
create or replace view postbus.catch_ups as
select t.name as topic, s.group_name, s.catch_up_of as group_subscription_id, u.subscription_id, u.reason, u.status, u.total,
       coalesce(u.processed, done.messages, 0) as processed, u.skipped, u.started_at, u.ended_at, recent.rate,
       clock_timestamp() + make_interval(secs => (u.total - done.messages) / nullif(recent.rate, 0)) as eta,
       case when u.status = 'IN_PROGRESS' then u.allowed_rate end as allowed_rate,
       case when u.status = 'IN_PROGRESS' then u.p95 end as p95
  from postbus.catch_up u
  join postbus.subscription s on s.id = u.subscription_id
  join postbus.topic t on t.id = s.topic_id
 cross join lateral (select sum(c.passed)::bigint as messages from postbus.current_cursor c where c.subscription_id = u.subscription_id) as done
 cross join lateral (
    select (sum(c.passed - before.passed) / nullif(extract(epoch from clock_timestamp() - min(before.at)), 0))::double precision as rate
      from postbus.current_cursor c
     cross join lateral (select l.passed, l.at from postbus.cursor l
                          where l.subscription_id = c.subscription_id and l.lane = c.lane and l.at >= clock_timestamp() - interval '10 seconds'
                          order by l.number limit 1) as before
     where c.subscription_id = u.subscription_id and u.status = 'IN_PROGRESS') as recent;

-- Notes the rate that a process allows a catch-up, and how long its statements take. The token of one of its lanes proves that the
-- caller consumes for it.
--
-- Writes: catch_up.
create or replace function postbus.report_catch_up(token uuid, allowed_rate double precision, p95 interval) returns void
language sql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off as $$
    update postbus.catch_up c
       set allowed_rate = case when report_catch_up.allowed_rate between 0 and 1e15 then report_catch_up.allowed_rate end,
           p95 = case when report_catch_up.p95 between interval '0' and interval '1 day' then report_catch_up.p95 end
      from postbus.lane l
     where l.token = report_catch_up.token and c.subscription_id = l.subscription_id
$$;

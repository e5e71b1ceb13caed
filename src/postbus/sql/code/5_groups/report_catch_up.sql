-- Tells how fast a process lets a catch-up go, and how long its statements take.
--
-- Writes: catch_up.
create or replace function postbus.report_catch_up(subscription_id bigint, allowed_rate double precision, p95 interval) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    update postbus.catch_up c
       set allowed_rate = report_catch_up.allowed_rate, p95 = report_catch_up.p95
     where c.subscription_id = report_catch_up.subscription_id
$$;

-- Removes subscriptions that ended or died long ago: see sweep_subscriptions_as_of.
--
-- Writes: see sweep_subscriptions_as_of.
create or replace function postbus.sweep_subscriptions(if_due boolean default false) returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.sweep_subscriptions_as_of(clock_timestamp(), if_due)
$$;

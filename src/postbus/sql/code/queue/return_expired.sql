-- Returns messages whose lease has ended: see return_expired_as_of.
--
-- Writes: see return_expired_as_of.
create or replace function postbus.return_expired(max_count integer default 1000, since timestamptz default '-infinity') returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.return_expired_as_of(max_count, since, clock_timestamp())
$$;

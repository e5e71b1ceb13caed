-- Gives back messages of a lease. The random token proves the lease. See postbus.release.
--
-- Writes: see postbus.release.
create or replace function postbus_topics.release(token uuid, ids bigint[]) returns bigint[]
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.release(token, ids)
$$;

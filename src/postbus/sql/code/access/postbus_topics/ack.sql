-- Finishes messages of a lease. The random token proves the lease. See postbus.ack.
--
-- Writes: see postbus.ack.
create or replace function postbus_topics.ack(token uuid, ids bigint[]) returns bigint[]
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.ack(token, ids)
$$;

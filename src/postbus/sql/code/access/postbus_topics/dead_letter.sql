-- Gives up messages of a lease. The random token proves the lease. See postbus.dead_letter.
--
-- Writes: see postbus.dead_letter.
create or replace function postbus_topics.dead_letter(token uuid, ids bigint[], reason text, error text default null) returns bigint[]
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.dead_letter(token, ids, reason, error)
$$;

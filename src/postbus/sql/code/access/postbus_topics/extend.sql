-- Extends leases, which their random tokens prove: see postbus.extend.
--
-- Writes: see postbus.extend.
create or replace function postbus_topics.extend(tokens uuid[], lease interval) returns uuid[]
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select postbus.extend(tokens, lease)
$$;

-- The identity of this database, which is part of the event ids of its messages: see event_id.
create or replace function postbus.source() returns uuid
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select c.source from postbus.cluster c
$$;

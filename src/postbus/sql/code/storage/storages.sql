-- The log storages, for processes that sweep them.
create or replace function postbus.storages() returns setof integer
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select s.id from postbus.log_storage s order by s.id
$$;

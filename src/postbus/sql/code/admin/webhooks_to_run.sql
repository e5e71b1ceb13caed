-- The webhooks that are enabled, with their secrets, for the HTTP servers.
create or replace function postbus.webhooks_to_run() returns setof postbus.webhook
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select w.* from postbus.webhook w where w.enabled order by w.name
$$;

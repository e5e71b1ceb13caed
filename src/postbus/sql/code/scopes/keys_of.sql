-- The keys whose messages a subscription wants; null: all.
create or replace function postbus.keys_of(subscription_id bigint) returns text[]
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select s.keys from postbus.subscription s where s.id = keys_of.subscription_id
$$;

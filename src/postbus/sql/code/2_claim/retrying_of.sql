-- The messages of lanes that wait to be tried again, or behind one that does: what their holder must not read twice.
create or replace function postbus.retrying_of(tokens uuid[])
returns table (subscription_id bigint, lane integer, id bigint, key text)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select r.subscription_id, r.lane, r.id, r.key
      from postbus.lane l join postbus.retrying r on r.subscription_id = l.subscription_id and r.lane = l.lane
     where l.token = any (tokens)
$$;

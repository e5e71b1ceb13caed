-- The messages of lanes that their holder must not take from the log: those that wait to be tried again, or behind one that
-- does, and those that are settled (is_done). The log still brings those that are `ahead`.
create or replace function postbus.retrying_of(tokens uuid[])
returns table (subscription_id bigint, lane integer, id bigint, key text, is_done boolean, ahead boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select r.subscription_id, r.lane, r.id, r.key, false, postbus.is_ahead(r.subscription_id, r.lane, r.id, r.position)
      from postbus.lane l join postbus.retrying r on r.subscription_id = l.subscription_id and r.lane = l.lane
     where l.token = any (tokens)
     union all
    select a.subscription_id, a.lane, a.id, null, true, true
      from postbus.lane l join postbus.settled_ahead a on a.subscription_id = l.subscription_id and a.lane = l.lane
     where l.token = any (tokens) and postbus.is_ahead(a.subscription_id, a.lane, a.id, a.position)
$$;

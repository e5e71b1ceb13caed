-- The holder of a lane has come past the point up to which a message might have killed the holders before it.
--
-- Writes: lane.
create or replace function postbus.calm_lane(token uuid) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    update postbus.lane l set deaths = 0, careful_until = null where l.token = calm_lane.token
$$;

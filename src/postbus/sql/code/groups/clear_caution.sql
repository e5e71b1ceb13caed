-- Ends the caution in a lane: its holder has come past the sequence up to which a message might have killed the holders before it.
--
-- Writes: lane.
create or replace function postbus.clear_caution(token uuid) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    update postbus.lane l set deaths = 0, careful_until = null where l.token = clear_caution.token
$$;

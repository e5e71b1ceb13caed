-- Ends careful mode in a lane: its holder is past the sequence up to which a message may have ended former holders.
--
-- Writes: lane.
create or replace function postbus.clear_caution(token uuid) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    update postbus.lane l set deaths = 0, careful_until = null where l.token = clear_caution.token
$$;

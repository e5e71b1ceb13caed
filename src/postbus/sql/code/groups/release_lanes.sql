-- Gives lanes back: the caller has settled its messages in them, and another process may go on at once.
--
-- Writes: lane.
create or replace function postbus.release_lanes(tokens uuid[]) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    update postbus.lane l set holder = null, token = gen_random_uuid(), held_since = null where l.token = any (tokens)
$$;

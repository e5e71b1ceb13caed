-- Remembers what the holder of lanes is done with although their cursors are not past it: parts of segments, from an index up to
-- another one. The holder leaves the lanes, and the next one must not handle these messages again. Lanes that are no longer the
-- holder's are passed over.
--
-- Writes: settled_ahead.  Locks: lane rows in the order of lanes, for share.
create or replace function postbus.note_done(tokens uuid[], lanes integer[], positions bigint[], starts integer[], stops integer[])
returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    with held as materialized (
        select l.subscription_id, l.lane from postbus.lane l where l.token = any (tokens) order by l.lane for share
    )
    insert into postbus.settled_ahead as known (subscription_id, lane, position, indexes)
    select held.subscription_id, held.lane, part.position, range_agg(int4range(part.start, part.stop))
      from unnest(lanes, positions, starts, stops) as part (lane, position, start, stop)
      join held on held.lane = part.lane
     group by held.subscription_id, held.lane, part.position
     order by held.subscription_id, held.lane, part.position
    on conflict on constraint settled_ahead_pkey do update set indexes = known.indexes + excluded.indexes
$$;

-- Remembers what the holder of lanes is done with although their cursors are not past it: parts of segments, from an index up to
-- another one. The holder leaves the lanes, and the next one must not handle these messages again. Lanes that are no longer the
-- holder's are passed over, and so is what was put off: it is out of the way, but not settled.
--
-- Writes: settled_ahead.  Locks: lane rows in the order of lanes, for share.
create or replace function postbus.note_done(tokens uuid[], lanes integer[], positions bigint[], starts integer[], stops integer[])
returns void
language sql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off as $$
    with held as materialized (
        select l.subscription_id, l.lane from postbus.lane l where l.token = any (tokens) order by l.lane for share
    ), done as (
        select held.subscription_id, held.lane, part.position, range_agg(int4range(part.start, part.stop)) as indexes
          from unnest(lanes, positions, starts, stops) as part (lane, position, start, stop)
          join held on held.lane = part.lane
         group by held.subscription_id, held.lane, part.position
    ), settled as (
        select d.subscription_id, d.lane, d.position, d.indexes - put_off.indexes as indexes
          from done d
         cross join lateral (select coalesce(range_agg(int4range((r.id & 1023)::integer, (r.id & 1023)::integer + 1)), '{}') as indexes
                               from postbus.retrying r
                              where r.subscription_id = d.subscription_id and r.lane = d.lane
                                and r.id between postbus.first_id(d.position) and postbus.first_id(d.position) + 1023) as put_off
    )
    insert into postbus.settled_ahead as known (subscription_id, lane, position, indexes)
    select s.subscription_id, s.lane, s.position, s.indexes from settled s
     where not isempty(s.indexes)
     order by s.subscription_id, s.lane, s.position
    on conflict on constraint settled_ahead_pkey do update set indexes = known.indexes + excluded.indexes
$$;

-- Remembers what the holder of lanes is done with although their cursors are not past it: parts of segments, from an index up to
-- another one. The holder leaves the lanes, and the next one must not handle these messages again. Lanes that are no longer the
-- holder's are passed over, and so is what was put off: it is out of the way, but not settled. So is what is no part of a segment of
-- the lane's topic in that lane.
--
-- Writes: settled_ahead.  Locks: lane rows in the order of lanes, for share.
create or replace function postbus.note_done(tokens uuid[], lanes integer[], positions bigint[], starts integer[], stops integer[])
returns void
language sql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off as $$
    with held as materialized (
        select l.subscription_id, l.lane, t.id as topic_id, t.storage_id
          from postbus.lane l
          join postbus.subscription s on s.id = l.subscription_id
          join postbus.topic t on t.id = s.topic_id
         where l.token = any (tokens) order by l.lane for share of l
    ), place as materialized (
        select held.subscription_id, held.lane, segment.position, segment.count
          from held
          join (select part.lane, array_agg(distinct part.position) as positions
                  from unnest(lanes, positions) as part (lane, position) group by part.lane) as asked on asked.lane = held.lane
         cross join lateral postbus.counts_at(held.storage_id, held.topic_id, held.lane, asked.positions) as segment
    ), done as (
        select place.subscription_id, place.lane, place.position,
               range_agg(int4range(greatest(part.start, 0), least(part.stop, place.count))) as indexes
          from unnest(lanes, positions, starts, stops) as part (lane, position, start, stop)
          join place on place.lane = part.lane and place.position = part.position
         where greatest(part.start, 0) < least(part.stop, place.count)
         group by place.subscription_id, place.lane, place.position
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

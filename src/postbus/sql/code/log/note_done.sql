-- Remembers what the holder of lanes is done with ahead of their cursors: parts of segments, from one index up to another. The
-- holder leaves the lanes, and the next one must not handle these messages again. Lanes that the caller has lost are skipped, and
-- so are deferred messages, which are not settled, and what is no part of a segment of the lane's topic in that lane.
--
-- Writes: settled_ahead.  Locks: lane rows in the order of lanes, for share.
create or replace function postbus.note_done(tokens uuid[], lanes integer[], sequences bigint[], starts integer[], stops integer[])
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
    ), position as materialized (
        select held.subscription_id, held.lane, segment.sequence, segment.count
          from held
          join (select part.lane, array_agg(distinct part.sequence) as sequences
                  from unnest(lanes, sequences) as part (lane, sequence) group by part.lane) as asked on asked.lane = held.lane
         cross join lateral postbus.counts_at(held.storage_id, held.topic_id, held.lane, asked.sequences) as segment
    ), done as (
        select position.subscription_id, position.lane, position.sequence,
               range_agg(int4range(greatest(part.start, 0), least(part.stop, position.count))) as indexes
          from unnest(lanes, sequences, starts, stops) as part (lane, sequence, start, stop)
          join position on position.lane = part.lane and position.sequence = part.sequence
         where greatest(part.start, 0) < least(part.stop, position.count)
         group by position.subscription_id, position.lane, position.sequence
    ), settled as (
        select d.subscription_id, d.lane, d.sequence, d.indexes - put_off.indexes as indexes
          from done d
         cross join lateral (select coalesce(range_agg(int4range((r.id & 1023)::integer, (r.id & 1023)::integer + 1)), '{}') as indexes
                               from postbus.deferred r
                              where r.subscription_id = d.subscription_id and r.lane = d.lane
                                and r.id between postbus.first_id(d.sequence) and postbus.first_id(d.sequence) + 1023) as put_off
    )
    insert into postbus.settled_ahead as known (subscription_id, lane, sequence, indexes)
    select s.subscription_id, s.lane, s.sequence, s.indexes from settled s
     where not isempty(s.indexes)
     order by s.subscription_id, s.lane, s.sequence
    on conflict on constraint settled_ahead_pkey do update set indexes = known.indexes + excluded.indexes
$$;

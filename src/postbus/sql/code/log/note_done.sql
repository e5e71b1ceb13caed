-- Remembers messages that the holder of lanes is done with ahead of their cursors: parts of segments, from one index up to another.
-- The holder leaves the lanes, and the next holder must not handle these messages again. Lanes that the caller has lost are
-- skipped, and so are deferred messages, which are not settled, and messages that do not exist in the lane.
--
-- Writes: settled_ahead.  Locks: lane rows in the order of lanes, for share.
create or replace function postbus.note_done(tokens uuid[], lanes integer[], sequences bigint[], starts integer[], stops integer[])
returns void
language sql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off as $$
    with owned as materialized (
        select l.subscription_id, l.lane, t.id as topic_id, t.storage_id
          from postbus.lane l
          join postbus.subscription s on s.id = l.subscription_id
          join postbus.topic t on t.id = s.topic_id
         where l.token = any (tokens) order by l.lane for share of l
    ), segment as materialized (
        select owned.subscription_id, owned.lane, counted.sequence, counted.count
          from owned
          join (select part.lane, array_agg(distinct part.sequence) as sequences
                  from unnest(lanes, sequences) as part (lane, sequence) group by part.lane) as given on given.lane = owned.lane
         cross join lateral postbus.counts_at(owned.storage_id, owned.topic_id, owned.lane, given.sequences) as counted
    ), done as (
        select segment.subscription_id, segment.lane, segment.sequence,
               range_agg(int4range(greatest(part.start, 0), least(part.stop, segment.count))) as indexes
          from unnest(lanes, sequences, starts, stops) as part (lane, sequence, start, stop)
          join segment on segment.lane = part.lane and segment.sequence = part.sequence
         where greatest(part.start, 0) < least(part.stop, segment.count)
         group by segment.subscription_id, segment.lane, segment.sequence
    ), settled as (
        select d.subscription_id, d.lane, d.sequence, d.indexes - unsettled.indexes as indexes
          from done d
         cross join lateral (select coalesce(range_agg(int4range((r.id & 1023)::integer, (r.id & 1023)::integer + 1)), '{}') as indexes
                               from postbus.deferred r
                              where r.subscription_id = d.subscription_id and r.lane = d.lane
                                and r.id between postbus.first_id(d.sequence) and postbus.first_id(d.sequence) + 1023) as unsettled
    )
    insert into postbus.settled_ahead as known (subscription_id, lane, sequence, indexes)
    select s.subscription_id, s.lane, s.sequence, s.indexes from settled s
     where not isempty(s.indexes)
     order by s.subscription_id, s.lane, s.sequence
    on conflict on constraint settled_ahead_pkey do update set indexes = known.indexes + excluded.indexes
$$;

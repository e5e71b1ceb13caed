-- The segments of a topic, each with a representative: the statuses of the representative hold for the segment, too. A segment
-- represents itself if there are facts about single messages of it, or if it lies within an edge of some cursor (cursor_edges). Few
-- segments do: those around the current and former positions of groups. All others lie between these positions, and one segment
-- represents all that lie between the same ones.
create or replace function postbus.representatives(topic postbus.topic, numbers bigint[]) returns table (
    sequence     bigint,
    lane         integer,
    txid         xid8,
    count        integer,
    published_at timestamptz,
    model        bigint
)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_nestloop = off
set jit = off as $$
#variable_conflict use_column
begin
    return query
        with edge as materialized (
            select p.lane, e.low, e.high, e.sequence from postbus.progress(topic.id) as p
             cross join lateral (select * from postbus.cursor_edges(p.began) union all select * from postbus.cursor_edges(p.reached)
                                  union all select pg_snapshot_xmin((p.died).snapshot), pg_snapshot_xmax((p.died).snapshot),
                                                  case when (p.died).txid = '2' then (p.died).sequence + 1 end) as e
             union
            select j.lane, e.low, e.high, e.sequence from postbus.joining j
             cross join lateral (select pg_snapshot_xmin(j.snapshot) as low, pg_snapshot_xmax(j.snapshot) as high, null::bigint as sequence
                                  union all select own.* from unnest(j.cursors) as c cross join lateral postbus.cursor_edges(c) as own) as e
             where j.topic_id = topic.id
        ), bound as materialized (
            select one.lane, array_agg(distinct one.txid order by one.txid) filter (where one.txid is not null) as txids,
                   array_agg(distinct one.sequence order by one.sequence) filter (where one.sequence is not null) as sequences
              from (select e.lane, e.low as txid, e.sequence from edge e union all select e.lane, e.high, null from edge e) as one
             group by one.lane
        ), era as materialized (        -- from one bound to the next; is_close: within the range of some edge
            select b.lane, n as era, exists (select from edge e where e.lane = b.lane and e.low <= b.txids[n] and e.high > b.txids[n]) as is_close
              from bound b cross join lateral generate_series(0, cardinality(b.txids)) as n
        ), found as materialized (
            select s.sequence, s.lane, s.txid, s.count, s.published_at, coalesce(width_bucket(s.txid, b.txids), 0) as era,
                   coalesce(width_bucket(s.sequence, b.sequences), 0) as spot
              from postbus.segment s
              left join bound b on b.lane = s.lane
             where s.storage_id = topic.storage_id and s.topic_id = topic.id
        ), judged as materialized (
            select f.*, e.is_close is not true and o.number is null as is_alike
              from found f
              left join era e on e.lane = f.lane and e.era = f.era
              left join (select distinct n as number from unnest(numbers) as n) as o on o.number = f.sequence & 8796093022207
        ), model as (
            select j.lane, j.era, j.spot, min(j.sequence) as sequence from judged j where j.is_alike group by j.lane, j.era, j.spot
        )
        select j.sequence, j.lane, j.txid, j.count, j.published_at, case when j.is_alike then m.sequence else j.sequence end
          from judged j left join model m on m.lane = j.lane and m.era = j.era and m.spot = j.spot;
end $$;

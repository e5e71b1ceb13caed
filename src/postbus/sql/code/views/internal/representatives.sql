-- The segments of a topic, each with a representative: all that is said of the representative as a whole holds for the segment. A
-- segment represents itself if something is known of single messages of it, or if some cursor has to look closer at it than at its
-- transaction id and sequence. That is so for few: those about the positions at which groups stand, or stood when they were set.
-- All others lie between these positions, and one represents all that lie between the same ones.
create or replace function postbus.representatives(topic postbus.topic, numbers bigint[]) returns table (
    sequence   bigint,
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
        ), era as materialized (        -- from one bound to the next; is_close: some position looks closer there
            select b.lane, n as era, exists (select from edge e where e.lane = b.lane and e.low <= b.txids[n] and e.high > b.txids[n]) as is_close
              from bound b cross join lateral generate_series(0, cardinality(b.txids)) as n
        ), found as materialized (
            select s.sequence, s.lane, s.txid, s.count, s.published_at, coalesce(width_bucket(s.txid, b.txids), 0) as era,
                   coalesce(width_bucket(s.sequence, b.sequences), 0) as spot
              from postbus.segment s
              left join bound b on b.lane = s.lane
             where s.storage_id = topic.storage_id and s.topic_id = topic.id
        ), told as materialized (
            select f.*, e.is_close is not true and o.number is null as is_alike
              from found f
              left join era e on e.lane = f.lane and e.era = f.era
              left join (select distinct n as number from unnest(numbers) as n) as o on o.number = f.sequence & 8796093022207
        ), model as (
            select t.lane, t.era, t.spot, min(t.sequence) as sequence from told t where t.is_alike group by t.lane, t.era, t.spot
        )
        select t.sequence, t.lane, t.txid, t.count, t.published_at, case when t.is_alike then m.sequence else t.sequence end
          from told t left join model m on m.lane = t.lane and m.era = t.era and m.spot = t.spot;
end $$;

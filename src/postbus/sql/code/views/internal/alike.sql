-- The segments of a topic, each with the one that stands for it: all that is said of whole segments of that one holds for it, too.
-- A segment stands for itself where something is known of single messages of it, or where some place in the log has to look closer at
-- it than at its transaction id and position. That is so for few: for those about the places at which groups stand, or stood when they
-- were set. All others lie between these places, and one of them stands for all that lie between the same ones.
create or replace function postbus.alike(topic postbus.topic, numbers bigint[]) returns table (
    "position"   bigint,
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
            select p.lane, e.low, e.high, e.position from postbus.progress(topic.id) as p
             cross join lateral (select * from postbus.edges(p.began) union all select * from postbus.edges(p.reached)
                                  union all select pg_snapshot_xmin((p.died).snapshot), pg_snapshot_xmax((p.died).snapshot),
                                                  case when (p.died).txid = '2' then (p.died).position + 1 end) as e
             union
            select j.lane, e.low, e.high, e.position from postbus.joining j
             cross join lateral (select pg_snapshot_xmin(j.snapshot) as low, pg_snapshot_xmax(j.snapshot) as high, null::bigint as position
                                  union all select own.* from unnest(j.cursors) as c cross join lateral postbus.edges(c) as own) as e
             where j.topic_id = topic.id
        ), bound as materialized (
            select one.lane, array_agg(distinct one.txid order by one.txid) filter (where one.txid is not null) as txids,
                   array_agg(distinct one.position order by one.position) filter (where one.position is not null) as positions
              from (select e.lane, e.low as txid, e.position from edge e union all select e.lane, e.high, null from edge e) as one
             group by one.lane
        ), era as materialized (        -- from one bound to the next; is_close: some place looks closer there
            select b.lane, n as era, exists (select from edge e where e.lane = b.lane and e.low <= b.txids[n] and e.high > b.txids[n]) as is_close
              from bound b cross join lateral generate_series(0, cardinality(b.txids)) as n
        ), found as materialized (
            select s.position, s.lane, s.txid, s.count, s.published_at, coalesce(width_bucket(s.txid, b.txids), 0) as era,
                   coalesce(width_bucket(s.position, b.positions), 0) as spot
              from postbus.segment s
              left join bound b on b.lane = s.lane
             where s.storage_id = topic.storage_id and s.topic_id = topic.id
        ), told as materialized (
            select f.*, e.is_close is not true and o.number is null as is_alike
              from found f
              left join era e on e.lane = f.lane and e.era = f.era
              left join (select distinct n as number from unnest(numbers) as n) as o on o.number = f.position & 8796093022207
        ), model as (
            select t.lane, t.era, t.spot, min(t.position) as position from told t where t.is_alike group by t.lane, t.era, t.spot
        )
        select t.position, t.lane, t.txid, t.count, t.published_at, case when t.is_alike then m.position else t.position end
          from told t left join model m on m.lane = t.lane and m.era = t.era and m.spot = t.spot;
end $$;

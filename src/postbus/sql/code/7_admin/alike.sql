-- The segments of a topic, each with the one that stands for it: all that is said of whole segments of that one holds for it, too.
-- A segment stands for itself where something is known of single messages of it, or where some place in the log tells apart more
-- than its transaction id does. That is so for few: for those about the places at which groups stand, or stood when they were set.
-- All others lie between these places, and one of them stands for all that lie between the same ones.
create or replace function postbus.alike(topic postbus.topic, numbers bigint[]) returns table (
    "position"   bigint,
    lane         integer,
    txid         xid8,
    count        integer,
    published_at timestamptz,
    model        bigint
)
language sql stable
set enable_nestloop = off
set jit = off as $$
    with place as materialized (
        select p.lane, e.low, e.high from postbus.progress(topic.id) as p
         cross join lateral (select * from postbus.edges(p.began) union all select * from postbus.edges(p.reached)
                              union all select pg_snapshot_xmin((p.died).snapshot), pg_snapshot_xmax((p.died).snapshot)) as e
         where e.low is not null
         union
        select j.lane, e.low, e.high from postbus.joining j
         cross join lateral (select pg_snapshot_xmin(j.snapshot) as low, pg_snapshot_xmax(j.snapshot) as high
                              union all select own.low, own.high from unnest(j.cursors) as c cross join lateral postbus.edges(c) as own) as e
         where j.topic_id = topic.id
    ), bound as materialized (
        select one.lane, array_agg(one.at order by one.at) as at
          from (select p.lane, p.low as at from place p union select p.lane, p.high from place p) as one group by one.lane
    ), era as materialized (        -- from one bound to the next; is_alike: no place tells apart what is in it
        select b.lane, n as era,
               not exists (select from place p where p.lane = b.lane and p.low <= b.at[n] and p.high > b.at[n]) as is_alike
          from bound b cross join lateral generate_series(0, cardinality(b.at)) as n
    ), found as materialized (
        select s.position, s.lane, s.txid, s.count, s.published_at, coalesce(width_bucket(s.txid, b.at), 0) as era
          from postbus.segment s
          left join bound b on b.lane = s.lane
         where s.storage_id = topic.storage_id and s.topic_id = topic.id
    ), own as materialized (
        select f.*, e.is_alike is not false and o.number is null as is_alike
          from found f
          left join era e on e.lane = f.lane and e.era = f.era
          left join (select distinct n as number from unnest(numbers) as n) as o on o.number = f.position & 8796093022207
    ), model as (
        select o.lane, o.era, min(o.position) as position from own o where o.is_alike group by o.lane, o.era
    )
    select o.position, o.lane, o.txid, o.count, o.published_at, case when o.is_alike then m.position else o.position end
      from own o left join model m on m.lane = o.lane and m.era = o.era
$$;

-- The limits beyond which a group of a topic is in trouble. The most specific row of health_limit decides about each value: that
-- of topic and group, of the group, of the topic, of all; then the defaults: half of the calls, and 24 hours.
--
--   failed_share     the share of calls in the last five minutes that failed, if at least five failed
--   lag              messages ahead of the group
--   lag_seconds      the age of the oldest message ahead of it
--   stopped_seconds  how long the group may be without a process after a planned stop
create or replace function postbus.health_limits(
    topic      text default '',
    group_name text default '',
    out failed_share    double precision,
    out lag             double precision,
    out lag_seconds     double precision,
    out stopped_seconds double precision
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    with fitting as (
        select l.*, row_number() over (order by l.group_name desc, l.topic desc) as n from postbus.health_limit l
         where l.topic in ('', health_limits.topic) and l.group_name in ('', health_limits.group_name)
    )
    select coalesce((array_agg(f.failed_share order by f.n) filter (where f.failed_share is not null))[1], 0.5),
           coalesce((array_agg(f.lag order by f.n) filter (where f.lag is not null))[1], 'infinity'),
           coalesce((array_agg(f.lag_seconds order by f.n) filter (where f.lag_seconds is not null))[1], 'infinity'),
           coalesce((array_agg(f.stopped_seconds order by f.n) filter (where f.stopped_seconds is not null))[1], 86400)
      from fitting f
$$;

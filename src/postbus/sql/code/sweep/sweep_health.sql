-- Whether sweeping keeps up, and if not, why: see sweep_health_as_of.
create or replace function postbus.sweep_health(
    max_backlog bigint default 1000000,
    out healthy            boolean,
    out reason             text,
    out backlog            bigint,
    out finished_rows      bigint,
    out finished_messages  bigint,
    out partitions         bigint,
    out partition_messages bigint,
    out published_rate     double precision,
    out swept_rate         double precision,
    out processes          bigint
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select * from postbus.sweep_health_as_of(clock_timestamp(), max_backlog)
$$;

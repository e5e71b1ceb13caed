-- The same as `delivery`, for views.
create or replace function postbus.delivery_at(
    topic_id        bigint,
    segment         postbus.segment_ref,
    index           integer,
    group_name      text,
    status          text,
    is_before       boolean,
    out settled_at  timestamptz,
    out worker      text,
    out attempts    integer,
    out last_error  text,
    out holder      text
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select d.settled_at, d.worker, d.attempts, d.last_error, d.holder
      from postbus.topic t
     cross join lateral postbus.delivery(t, segment, index, group_name, delivery_at.status, is_before) as d
     where t.id = delivery_at.topic_id
$$;

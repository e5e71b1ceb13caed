-- The history that a group works through, or the last one that it has worked through.
create or replace function postbus.last_catch_up(
    subscription_id bigint,
    out status      text,
    out total       bigint,
    out processed   bigint,
    out started_at  timestamptz,
    out ended_at    timestamptz
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select u.status, u.total, u.processed, u.started_at, u.ended_at
      from postbus.catch_ups u where u.group_subscription_id = last_catch_up.subscription_id order by u.started_at desc limit 1
$$;

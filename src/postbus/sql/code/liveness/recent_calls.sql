-- How many calls for messages of a group ended well in the last five minutes, and how many failed: calls of handlers, and messages
-- that were popped and settled.
create or replace function postbus.recent_calls(
    subscription_id bigint,
    out handled bigint,
    out failed  bigint
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(t.handled), 0)::bigint, coalesce(sum(t.failed), 0)::bigint
      from postbus.group_tally t
     where t.subscription_id = recent_calls.subscription_id and t.at > (select clock_timestamp()) - interval '5 minutes'
$$;

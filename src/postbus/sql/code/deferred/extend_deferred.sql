-- Extends the leases of deferred messages that the holder of lanes has in hand, by the topic's lease from now.
--
-- Writes: deferred.  Locks: lane rows, for share.
create or replace function postbus.extend_deferred(tokens uuid[], ids bigint[]) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    with owned as (
        select l.subscription_id, l.lane, (postbus.subscribed_topic(l.subscription_id)).lease
          from postbus.lane l where l.token = any (extend_deferred.tokens) for share
    )
    update postbus.deferred r set due_at = clock_timestamp() + owned.lease
      from owned
     where r.subscription_id = owned.subscription_id and r.lane = owned.lane and r.id = any (ids) and r.alone is not null and r.token is null;
end $$;

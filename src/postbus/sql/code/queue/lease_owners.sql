-- The topics and groups of leases, for the HTTP server, which limits callers to some of these. The group is null for a queue.
-- There is no row for a lease that has ended.
create or replace function postbus.lease_owners(tokens uuid[]) returns table (token uuid, topic text, group_name text)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select l.token, known.name, null
      from postbus.lease l
     cross join lateral (select coalesce((select t.name from postbus.topic t where t.id = l.topic_id),
                                         (select s.name from postbus.topic_seen s where s.topic_id = l.topic_id limit 1)) as name) as known
     where l.token = any (tokens)
    union
    select r.token, t.name, s.group_name
      from postbus.deferred r
      join postbus.subscription s on s.id = r.subscription_id
      join postbus.topic t on t.id = s.topic_id
     where r.token = any (tokens)
$$;

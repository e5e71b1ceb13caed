-- Topics without a live group that have messages nevertheless: nobody gets these, and they go when their retention is over.
-- Counts them, so it takes as long as there are segments of such topics.
create or replace function postbus.zero_subscription_messages() returns table (topic text, messages bigint, oldest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select t.name, retained.messages, retained.oldest_at
      from postbus.topic t
     cross join lateral (select sum(s.count)::bigint as messages, min(s.published_at) as oldest_at
                           from postbus.segment s where s.storage_id = t.storage_id and s.topic_id = t.id) as retained
     where t.storage_id is not null and retained.messages > 0
       and not exists (select from postbus.subscription s where s.topic_id = t.id and s.state in ('ACTIVE', 'PAUSED'))
     order by t.name
$$;

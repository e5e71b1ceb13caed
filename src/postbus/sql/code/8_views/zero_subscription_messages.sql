-- Topics that have messages for nobody: no group was ever required for them, or has settled them. They go when their retention is over.
-- Counts them, so it takes as long as there are segments; but not those of topics in which each message has, or had, a group.
create or replace function postbus.zero_subscription_messages() returns table (topic text, messages bigint, oldest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select t.name, retained.messages, retained.oldest_at
      from postbus.topic t
     cross join lateral (select sum(state.last_index - state.first_index + 1)::bigint as messages, min(s.published_at) as oldest_at
                           from postbus.states_of_topic(t.id) as state
                           join postbus.segment s on s.storage_id = t.storage_id and s.topic_id = t.id and s.position = state.position
                          where not state.wanted) as retained
     where t.storage_id is not null and retained.messages > 0
     order by t.name
$$;

-- Topics that have messages which no group was ever required for, or has settled. These are removed when their retention is over.
-- Counts them, which takes time for all segments, except in topics that keep nothing from before the start of a live group.
create or replace function postbus.zero_subscription_messages() returns table (topic text, messages bigint, oldest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select t.name, retained.messages, retained.oldest_at
      from postbus.topic t
     cross join lateral (select min(part.epoch) as epoch from postbus.partition_topic part
                          where part.storage_id = t.storage_id and part.topic_id = t.id) as oldest
     cross join lateral (select sum(state.last_index - state.first_index + 1)::bigint as messages, min(s.published_at) as oldest_at
                           from postbus.states_of_topic(t.id) as state
                           join postbus.segment s on s.storage_id = t.storage_id and s.topic_id = t.id and s.sequence = state.sequence
                          where not state.wanted
                            -- The partition that was current when the stretch began, and the next one, may have earlier messages.
                            and not exists (select from postbus.stretch st
                                             where st.topic_id = t.id and st.reached is null and st.died is null and (st.began).since_bound is null
                                             group by st.subscription_id
                                            having count(*) = t.lanes and max(((st.began).seen).sequence >> 43) + 1 < oldest.epoch)) as retained
     where t.storage_id is not null and retained.messages > 0
     order by t.name
$$;

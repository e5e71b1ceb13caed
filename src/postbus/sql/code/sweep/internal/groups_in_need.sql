-- The subscriptions that keep messages of a partition for topics, if they have yet to read them; histories of groups included.
--
-- ACTIVE and PAUSED groups keep messages; a DEAD group does so for the topic's dead_retention after its death. An ACTIVE group
-- that made no progress for the zombie_time, although this partition was ahead of it, keeps none.
create or replace function postbus.groups_in_need(topic_ids bigint[], partition postbus.log_partition, as_of timestamptz)
returns table (subscription_id bigint, topic_id bigint)
language plpgsql stable
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
begin
    return query
    select s.id, t.id
      from unnest(topic_ids) as one (id)
      join postbus.topic t on t.id = one.id
      join postbus.subscription s on s.topic_id = t.id and s.state <> 'CANCELLED'
     where case s.state when 'PAUSED' then true
                        when 'DEAD' then s.state_changed_at > as_of - t.dead_retention
                        else greatest(s.subscribed_at, s.state_changed_at, partition.closed_at) > as_of - t.zombie_time
                             or exists (select from postbus.current_cursor c
                                         where c.subscription_id = s.id and c.at > as_of - t.zombie_time) end;
end $$;

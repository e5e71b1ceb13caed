-- Forgets messages that were settled ahead of cursors which are past them by now, and those that are no longer in the log.
--
-- Writes: settled_ahead.
create or replace function postbus.forget_settled(storage_id integer) returns void
language sql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
    with position as materialized (
        select t.id as topic_id, c.subscription_id, c.lane, c.cursor
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id
          join postbus.current_cursor c on c.subscription_id = s.id
         where t.storage_id = forget_settled.storage_id
           and exists (select from postbus.settled_ahead a where a.subscription_id = c.subscription_id and a.lane = c.lane)
    )
    delete from postbus.settled_ahead a
     using position
     where a.subscription_id = position.subscription_id and a.lane = position.lane
       and not exists (select from postbus.segment s
                        where s.storage_id = forget_settled.storage_id and s.topic_id = position.topic_id and s.sequence = a.sequence
                          and s.lane = a.lane
                          and upper(a.indexes) > s.count - postbus.unseen_in_segment(position.cursor, s.sequence, s.txid, s.count, s.published_at))
$$;

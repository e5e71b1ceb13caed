-- Forgets what was settled ahead of cursors that are past it by now, or that is no longer in the log.
--
-- Writes: settled_ahead.
create or replace function postbus.forget_settled(storage_id integer) returns void
language sql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
    with place as materialized (
        select t.id as topic_id, c.subscription_id, c.lane, c.cursor
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id
          join postbus.current_cursor c on c.subscription_id = s.id
         where t.storage_id = forget_settled.storage_id
           and exists (select from postbus.settled_ahead a where a.subscription_id = c.subscription_id and a.lane = c.lane)
    )
    delete from postbus.settled_ahead a
     using place
     where a.subscription_id = place.subscription_id and a.lane = place.lane
       and not exists (select from postbus.segment s
                        where s.storage_id = forget_settled.storage_id and s.topic_id = place.topic_id and s.position = a.position
                          and s.lane = a.lane
                          and upper(a.indexes) > s.count - postbus.unseen(place.cursor, s.position, s.txid, s.count, s.published_at))
$$;

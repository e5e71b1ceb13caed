-- Notes that subscriptions have died or ended, together with their histories: they are not required for messages that are published
-- from now on.
--
-- Writes: stretch.
create or replace function postbus.note_death(ids bigint[]) returns void
language sql
set enable_seqscan = off as $$
    update postbus.stretch st set died = postbus.log_end(st.topic_id)
     where st.subscription_id = any (ids || array(select s.id from postbus.subscription s where s.catch_up_of = any (ids)))
       and st.reached is null and st.died is null
$$;

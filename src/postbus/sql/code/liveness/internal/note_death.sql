-- Notes for subscriptions that they have died or ended, with the histories that they work through: what is published from now on is not
-- required for them.
--
-- Writes: stretch.
create or replace function postbus.note_death(ids bigint[]) returns void
language sql
set enable_seqscan = off as $$
    update postbus.stretch st set died = postbus.place_now(st.topic_id)
     where st.subscription_id = any (ids || array(select s.id from postbus.subscription s where s.catch_up_of = any (ids)))
       and st.reached is null and st.died is null
$$;

-- Removes subscriptions with all that belongs to them, dead letters too. Their receipts go with the leaves they are in.
--
-- Writes: subscription and all that belongs to it.
create or replace function postbus.forget_subscriptions(ids bigint[]) returns void
language plpgsql as $$
begin
    delete from postbus.lane l where l.subscription_id = any (ids);
    delete from postbus.cursor c where c.subscription_id = any (ids);
    delete from postbus.retrying r where r.subscription_id = any (ids);
    delete from postbus.settled_ahead a where a.subscription_id = any (ids);
    delete from postbus.group_worker g where g.subscription_id = any (ids);
    delete from postbus.sign_of_life sign where sign.subscription_id = any (ids);
    delete from postbus.member m where m.subscription_id = any (ids);
    delete from postbus.group_tally t where t.subscription_id = any (ids);
    delete from postbus.loss l where l.subscription_id = any (ids);
    delete from postbus.catch_up u where u.subscription_id = any (ids);
    delete from postbus.dead_letter d
     using postbus.subscription s where s.id = any (ids) and d.topic_id = s.topic_id and d.subscription_id = s.id;
    delete from postbus.subscription s where s.id = any (ids);
end $$;

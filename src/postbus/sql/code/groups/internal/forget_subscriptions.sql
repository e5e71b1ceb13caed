-- Removes subscriptions with all that belongs to them, dead letters included. What became of messages stays known for as long as
-- these are retained, unless `with_past` is false because the messages are removed as well.
--
-- Writes: subscription and all that belongs to it; see keep_history.
create or replace function postbus.forget_subscriptions(ids bigint[], with_past boolean default true) returns void
language plpgsql as $$
begin
    if with_past then
        perform postbus.keep_history(t, s.id) from postbus.subscription s join postbus.topic t on t.id = s.topic_id where s.id = any (ids);
    end if;
    delete from postbus.lane l where l.subscription_id = any (ids);
    delete from postbus.cursor c where c.subscription_id = any (ids);
    delete from postbus.deferred r where r.subscription_id = any (ids);
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

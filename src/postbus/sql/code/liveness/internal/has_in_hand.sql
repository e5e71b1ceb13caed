-- Whether a pulling consumer has messages of a group in hand: its lease has not ended, or a transaction that is still open has
-- settled some of them.
--
-- Locks: rows of deferred whose lease has ended (skip locked).
create or replace function postbus.has_in_hand(subscription_id bigint, as_of timestamptz) returns boolean
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
    _parts bigint[] := array(select s.id from postbus.subscription s
                              where s.id = has_in_hand.subscription_id or s.catch_up_of = has_in_hand.subscription_id);
    _tids  tid[];
begin
    if exists (select from postbus.deferred r
                where r.subscription_id = any (_parts) and not r.parked and r.due_at > as_of and r.token is not null) then
        return true;
    end if;
    _tids := array(select r.ctid from postbus.deferred r
                    where r.subscription_id = any (_parts) and not r.parked and r.due_at <= as_of and r.token is not null
                    order by r.due_at desc limit 100);
    return cardinality(_tids) > (select count(*) from (select from postbus.deferred r where r.ctid = any (_tids)
                                                          for no key update skip locked) as free);
end $$;

-- The scopes of which a consumer has messages in hand that it popped from all topics of the scope: its group lives in each of
-- these topics. Forgets pops whose messages are settled, or in hand of another consumer.
--
-- Writes: scope_pop.  Locks: its rows (skip locked).
create or replace function postbus.scopes_in_hand(as_of timestamptz) returns bigint[]
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off as $$
begin
    delete from postbus.scope_pop p
     where p.ctid = any (array(select old.ctid from postbus.scope_pop old
                                where not exists (select from postbus.deferred r where r.token = old.token)
                                  for update of old skip locked));
    return array(select distinct p.scope_id from postbus.scope_pop p
                  where exists (select from postbus.deferred r where r.token = p.token and r.due_at > as_of));
end $$;

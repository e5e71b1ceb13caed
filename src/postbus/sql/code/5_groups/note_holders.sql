-- Notes that the groups live whose messages pops hold by these tokens: somebody settles the messages, or prolongs the leases.
--
-- Nothing happens in a transaction with a snapshot of its own: a row that somebody else has changed would make it fail.
--
-- Writes: see note_life.
create or replace function postbus.note_holders(tokens uuid[], as_of timestamptz) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
declare
    _quiet bigint[] := array(
        select distinct own.id
          from unnest(tokens) as held (token)
         cross join lateral (select r.subscription_id from postbus.retrying r where r.token = held.token limit 1) as one
          join postbus.subscription s on s.id = one.subscription_id
          join postbus.subscription own on own.id = coalesce(s.catch_up_of, s.id)
          join postbus.topic t on t.id = own.topic_id
         where own.state = 'DEAD' or own.state = 'ACTIVE' and own.seen_at < as_of - t.heartbeat_interval / 2);
begin
    if _quiet <> '{}' and current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
        perform postbus.note_life(_quiet, as_of);
    end if;
end $$;

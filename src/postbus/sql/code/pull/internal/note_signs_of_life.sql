-- Notes that groups live because a consumer settles, or extends the leases of, messages that pops have in hand with these tokens.
--
-- A transaction that settles messages may stay open for long. So unless at_once is given, it does not touch the row of an ACTIVE
-- group, which others need. Instead it inserts a row into sign_of_life, at most twice per heartbeat interval, which counts when the
-- transaction has committed: see detect_dead. A DEAD group comes back at once if that is possible: see note_life.
--
-- Writes: sign_of_life; see note_life.
create or replace function postbus.note_signs_of_life(tokens uuid[], as_of timestamptz, at_once boolean default false) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
declare
    _quiet record;
begin
    for _quiet in
        select distinct own.id, own.state
          from unnest(tokens) as given (token)
         cross join lateral (select r.subscription_id from postbus.deferred r where r.token = given.token limit 1) as one
          join postbus.subscription s on s.id = one.subscription_id
          join postbus.subscription own on own.id = coalesce(s.catch_up_of, s.id)
          join postbus.topic t on t.id = own.topic_id
         where own.state = 'DEAD'
            or own.state = 'ACTIVE' and (own.seen_at < as_of - t.heartbeat_interval / 2 or own.stopped_at >= own.seen_at)
               and not exists (select from postbus.sign_of_life sign
                                where sign.subscription_id = own.id
                                  and sign.at > greatest(as_of - t.heartbeat_interval / 2, own.stopped_at))
         order by own.id
    loop
        if _quiet.state = 'ACTIVE' and not at_once then
            insert into postbus.sign_of_life (subscription_id, at) values (_quiet.id, as_of);
        elsif current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
            perform postbus.note_life(array[_quiet.id], as_of);     -- another isolation level could fail at a row that has changed
        end if;
    end loop;
end $$;

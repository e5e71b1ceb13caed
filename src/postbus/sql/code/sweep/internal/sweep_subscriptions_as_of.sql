-- Removes subscriptions that ended or died longer ago than subscription_retention, with what belongs to them, and histories that
-- were worked through. These stay:
--
--   a subscription with dead letters or deferred messages: an operator has to decide about them
--   a DEAD subscription, for the topic's retention and dead_retention: until then it may come back to messages that are still there
--   the history of a group that lives, while its receipts say what became of messages
--   a CANCELLED subscription that keeps its group out of a topic of its scopes
--
-- One caller at a time: a second one returns at once. Returns the number of removed subscriptions. Also removes events of groups
-- that no process has taken for a day.
--
-- Writes: subscription and all that belongs to it, stretch, joining, group_event, sweep_job.
-- Locks: an advisory lock for the transaction; subscription rows (skip locked).
create or replace function postbus.sweep_subscriptions_as_of(
    as_of  timestamptz default clock_timestamp(),
    if_due boolean default false
) returns bigint
language plpgsql as $$
declare
    _began timestamptz := clock_timestamp();
    _every interval := '1 hour';
    _keeps interval := (select s.subscription_retention from postbus.sweep_setting s);
    _gone  bigint[];
begin
    if not pg_try_advisory_xact_lock(hashtext('postbus.sweep_subscriptions'))
       or (if_due and not postbus.is_due('subscriptions', 0, _every, as_of)) then
        return 0;
    end if;
    _gone := array(
        select s.id from postbus.subscription s
          join postbus.topic t on t.id = s.topic_id
          left join postbus.subscription living on living.id = s.catch_up_of and living.state <> 'CANCELLED'
         where case s.state when 'CANCELLED' then s.state_changed_at < as_of - _keeps
                            when 'DEAD' then greatest(s.state_changed_at, s.seen_at) < as_of - greatest(_keeps, t.retention, t.dead_retention)
                                             and s.catch_up_of is null      -- its history goes with it
                            else false end
           and not (s.state = 'CANCELLED' and s.catch_up_of is null
                    and exists (select from postbus.scope c
                                 where c.group_name = s.group_name and c.recorded_at <= s.state_changed_at and postbus.in_scope(c, t)))
           and not exists (select from postbus.dead_letter d where d.topic_id = s.topic_id and d.subscription_id = s.id)
           and not exists (select from postbus.subscription part join postbus.deferred r on r.subscription_id = part.id
                            where part.id = s.id or part.catch_up_of = s.id)
           and not (living.id is not null
                    and exists (select from postbus.receipt r where r.storage_id = t.storage_id and r.subscription_id = s.id))
         order by s.id
           for update of s skip locked);
    _gone := _gone || array(select s.id from postbus.subscription s where s.catch_up_of = any (_gone) and s.id <> all (_gone));
    perform postbus.forget_subscriptions(_gone);
    delete from postbus.group_event e where e.at < as_of - interval '1 day';
    perform postbus.forget_stretches();
    perform postbus.note_run('subscriptions', 0, cardinality(_gone), _every, _began, as_of);
    return cardinality(_gone);
end $$;

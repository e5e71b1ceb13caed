-- What became of a message of the log at each group of its topic. It is required for a group that was subscribed when it
-- was committed, and lives. status:
--
--   PENDING     not yet read, or just being handled; holder is the process that reads its lane
--   RETRYING    failed, to be tried again
--   WAITING     behind a message of its key that failed
--   COMPLETED   done: settled_at, worker and attempts tell by whom and when, if the topic keeps receipts
--   DEAD        given up: it is, or was, a dead letter of the group
--   SKIPPED     the group began later, or was set past it
create or replace function postbus.delivery(
    topic_id     bigint,
    id           bigint,
    lane         integer,
    "position"   bigint,
    txid         xid8,
    index        integer,
    count        integer,
    published_at timestamptz
) returns table (
    subscription_id bigint,
    group_name      text,
    required        boolean,
    status          text,
    settled_at      timestamptz,
    worker          text,
    attempts        integer,
    last_error      text,
    holder          text
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select s.id, s.group_name,
           s.state in ('ACTIVE', 'PAUSED') and status.is <> 'SKIPPED'
               and case when (s.subscribed).txid = '2' then delivery.position > (s.subscribed).position    -- see rebase
                        else not pg_visible_in_snapshot(delivery.txid, (s.subscribed).snapshot) end,
           status.is,
           case when status.is in ('COMPLETED', 'DEAD') and t.tracking = 'REFERENCE_COUNTING' then coalesce(own.at, done.at) end,
           case when status.is in ('COMPLETED', 'DEAD') and t.tracking = 'REFERENCE_COUNTING' then coalesce(own.worker, done.worker) end,
           coalesce(waits.attempts, own.attempts, dead.attempts, case when status.is = 'COMPLETED' then 1 else 0 end),
           coalesce(waits.last_error, own.error, dead.last_error, dead.reason),
           case when status.is = 'PENDING' then held.holder end
      from postbus.topic t
      join postbus.subscription s on s.topic_id = t.id and s.state <> 'CANCELLED' and s.catch_up_of is null
      left join postbus.lane held on held.subscription_id = s.id and held.lane = delivery.lane
      left join lateral (select r.parked, r.attempts, r.last_error
                           from postbus.subscription part
                           join postbus.retrying r on r.subscription_id = part.id and r.lane = delivery.lane and r.id = delivery.id
                          where part.id = s.id or part.catch_up_of = s.id limit 1) as waits on true
      left join lateral (select d.attempts, d.last_error, d.reason from postbus.dead_letter d
                          where d.id = delivery.id and d.subscription_id = s.id) as dead on true
      left join lateral (select r.at, r.worker, r.outcome, r.attempts, r.error
                           from postbus.receipt r join postbus.subscription part on part.id = r.subscription_id
                          where r.storage_id = t.storage_id and r.id = delivery.id and (part.id = s.id or part.catch_up_of = s.id)
                          order by r.at desc limit 1) as own on true
      left join lateral (select found.at, found.worker, found.moved
                           from postbus.subscription part
                          cross join lateral postbus.settlement(part.id, delivery.lane, delivery.position, delivery.txid, delivery.index,
                                                                delivery.count, delivery.published_at) as found
                          where part.id = s.id or part.catch_up_of = s.id
                          order by found.moved is not null, part.catch_up_of is null limit 1) as done on true
     cross join lateral (select case when waits.parked then 'WAITING'
                                     when waits.parked is not null then 'RETRYING'
                                     when dead.attempts is not null then 'DEAD'
                                     when own.outcome is not null then own.outcome
                                     when done.at is null then 'PENDING'
                                     when done.moved is null then 'COMPLETED'
                                     when done.moved = 'catch-up' and exists (
                                         select from postbus.catch_up u where u.of = s.id and u.status = 'IN_PROGRESS') then 'PENDING'
                                     else 'SKIPPED' end as is) as status
     where t.id = delivery.topic_id
$$;

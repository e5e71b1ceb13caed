-- What became of messages of one segment at each group of their topic: one row for those that follow each other and share
-- their fate. They are required for a group that was subscribed when they were committed, and lives. status:
--
--   PENDING     not yet read, or just being handled; holder is the process that reads its lane, or who popped it
--   RETRYING    failed, to be tried again
--   WAITING     behind a message of its key that failed
--   COMPLETED   done: settled_at, worker and attempts tell by whom and when, if the topic keeps receipts
--   DEAD        given up: it is, or was, a dead letter of the group
--   SKIPPED     the group began later, or was set past it
create or replace function postbus.delivery(
    topic_id     bigint,
    lane         integer,
    "position"   bigint,
    txid         xid8,
    count        integer,
    published_at timestamptz,
    from_index   integer,
    to_index     integer
) returns table (
    first_index     integer,
    last_index      integer,
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
language sql stable security definer rows 10
set search_path = pg_catalog, pg_temp as $$
    with topic as materialized (
        select t.storage_id, t.tracking, postbus.first_id(delivery.position) as first_id
          from postbus.topic t where t.id = delivery.topic_id
    ), groups as materialized (
        select s.id, s.group_name, s.state, s.subscribed from postbus.subscription s
         where s.topic_id = delivery.topic_id and s.state <> 'CANCELLED' and s.catch_up_of is null
    ), part as materialized (       -- the group's subscription, and those that work, or have worked, through its history
        select g.id as group_id, g.id, true as is_main from groups g
        union all
        select g.id, history.id, false from groups g join postbus.subscription history on history.catch_up_of = g.id
    ), settled as materialized (
        select p.group_id, p.is_main, done.*
          from part p
         cross join lateral postbus.settlement(p.id, delivery.lane, delivery.position, delivery.txid, delivery.count, delivery.published_at,
                                               delivery.from_index, delivery.to_index) as done
    ), waits as materialized (
        select p.group_id, r.id, r.parked, r.attempts, r.last_error, r.member, r.shelved and r.attempts = 0 or r.token is not null as is_shelved
          from topic t cross join part p
          join postbus.retrying r on r.subscription_id = p.id and r.lane = delivery.lane
           and r.id between t.first_id + delivery.from_index and t.first_id + delivery.to_index
    ), dead as materialized (
        select g.id as group_id, d.id, d.attempts, d.last_error, d.reason
          from topic t cross join groups g
          join postbus.dead_letter d on d.subscription_id = g.id
           and d.id between t.first_id + delivery.from_index and t.first_id + delivery.to_index
    ), own as materialized (
        select distinct on (p.group_id, r.id) p.group_id, r.id, r.at, r.worker, r.outcome, r.attempts, r.error
          from topic t cross join part p
          join postbus.receipt r on r.storage_id = t.storage_id and r.subscription_id = p.id
           and r.id between t.first_id + delivery.from_index and t.first_id + delivery.to_index
         order by p.group_id, r.id, r.at desc
    ), open as materialized (       -- from where on messages are before the group, or before its history; and since when
        select p.group_id, delivery.count - unread.messages as first_index,
               case when exists (select from own o where o.group_id = p.group_id) then (
                   select max(l.at) from postbus.ledger l
                    where l.subscription_id = p.id and l.lane = delivery.lane and l.moved is not null) end as since
          from part p
          join postbus.current_cursor c on c.subscription_id = p.id and c.lane = delivery.lane
         cross join lateral (select postbus.unseen(c.cursor, delivery.position, delivery.txid, delivery.count, delivery.published_at)
                                    as messages) as unread
         where unread.messages > 0
           and (p.is_main or exists (select from postbus.catch_up u where u.subscription_id = p.id and u.status = 'IN_PROGRESS'))
    ), alone as (
        select one.group_id, (one.id & 1023)::integer as index
          from (select w.group_id, w.id from waits w
                union all select d.group_id, d.id from dead d
                union all select o.group_id, o.id from own o) as one
    ), begins as (
        select g.id as group_id, delivery.from_index as index from groups g
        union select s.group_id, s.first_index from settled s
        union select s.group_id, s.last_index + 1 from settled s
        union select o.group_id, greatest(o.first_index, delivery.from_index) from open o
        union select a.group_id, a.index from alone a
        union select a.group_id, a.index + 1 from alone a
    ), run as (
        select b.group_id, b.index as first_index, t.first_id + b.index as id, t.tracking,
               lead(b.index, 1, delivery.to_index + 1) over (partition by b.group_id order by b.index) - 1 as last_index
          from begins b cross join topic t where b.index <= delivery.to_index
    )
    select run.first_index, run.last_index, g.id, g.group_name,
           g.state in ('ACTIVE', 'PAUSED') and status.is <> 'SKIPPED'
               and case when (g.subscribed).txid = '2' then delivery.position > (g.subscribed).position    -- see rebase
                        else not pg_visible_in_snapshot(delivery.txid, (g.subscribed).snapshot) end,
           status.is,
           case when status.is in ('COMPLETED', 'DEAD') and run.tracking = 'REFERENCE_COUNTING' then coalesce(o.at, done.at) end,
           case when status.is in ('COMPLETED', 'DEAD') and run.tracking = 'REFERENCE_COUNTING' then coalesce(o.worker, done.worker) end,
           coalesce(w.attempts, o.attempts, d.attempts, case when status.is = 'COMPLETED' then 1 else 0 end),
           coalesce(w.last_error, o.error, d.last_error, d.reason),
           case when status.is = 'PENDING' then coalesce(w.member, held.holder) end
      from run
      join groups g on g.id = run.group_id
      left join postbus.lane held on held.subscription_id = g.id and held.lane = delivery.lane
      left join waits w on w.group_id = g.id and w.id = run.id
      left join dead d on d.group_id = g.id and d.id = run.id
      left join own o on o.group_id = g.id and o.id = run.id
      left join lateral (select s.at, s.worker, s.moved from settled s
                          where s.group_id = g.id and run.first_index between s.first_index and s.last_index
                          order by s.moved is not null, s.is_main limit 1) as done on true
     cross join lateral (select count(*) > 0 as is_open, max(one.since) as since from open one
                          where one.group_id = g.id and one.first_index <= run.first_index) as before
     cross join lateral (select case when w.is_shelved then 'PENDING'
                                     when w.parked then 'WAITING'
                                     when w.parked is not null then 'RETRYING'
                                     when d.attempts is not null then 'DEAD'
                                     when o.outcome is not null and (o.at < before.since) is not true then o.outcome
                                     when before.is_open then 'PENDING'
                                     when done.at is not null and done.moved is null then 'COMPLETED'
                                     else 'SKIPPED' end as is) as status
$$;

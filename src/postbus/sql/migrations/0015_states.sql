-- What became of messages is known for as long as they are retained, whatever becomes of their groups.

-- What a subscription has worked through in a lane: all that lies between the place at which it was set (`began`) and the one that
-- it had reached when it was set elsewhere, or ended (`reached`; null while it stands in this stretch: then its cursor tells).
-- A group that comes back from the dead begins a new stretch where it stands. Rows are written at such events only, and outlive the
-- subscription.
create table postbus.stretch (
    subscription_id bigint not null,
    lane            integer not null,
    number          bigint not null,                -- of the ledger's row with which it began
    topic_id        bigint not null,
    group_id        bigint not null,                -- the group's subscription; another one reads its history
    group_name      text not null,
    txid            xid8 not null default pg_current_xact_id(),     -- of the event that began it
    began           postbus.log_cursor not null,
    reached         postbus.log_cursor,
    died            postbus.log_place,              -- what was there when the group died or left; null while it lives
    primary key (subscription_id, lane, number)
);
create index stretch_topic_idx on postbus.stretch (topic_id, lane);

-- A moment at which retained messages came to be before a group: it joined late, came back from the dead, was set back, or its
-- history went on. What was completed in the lane at that moment stays completed: what the snapshot shows, every live group was past
-- (`cursors`: the last of their places), and some group had settled.
create table postbus.joining (
    id         bigint generated always as identity primary key,
    topic_id   bigint not null,
    lane       integer not null,
    at         timestamptz not null default clock_timestamp(),
    "position" bigint not null,                     -- the last one that was handed out
    snapshot   pg_snapshot not null,
    cursors    postbus.log_cursor[] not null,
    owners     text[] not null                      -- of each: the group, if it may have settled more before than it is past now
);
create index joining_topic_idx on postbus.joining (topic_id, lane);

-- The stretch in which a message was put off, or settled by itself; null where that is not known. Below 0: the stretch in which its subscription
-- stood when the message was given to it, which does not tell of the message.
alter table postbus.retrying add column stretch bigint;
alter table postbus.dead_letter add column stretch bigint;
alter table postbus.receipt
    add column stretch bigint,
    add column txid    xid8,
    add column odd     boolean;     -- says of its message what the stretch does not say

-- The leaves in which the ledger of a subscription has receipts: so nobody has to look into all of them.
create table postbus.receipt_leaf (
    subscription_id bigint not null,
    epoch           integer not null,
    storage_id      integer not null,
    primary key (subscription_id, epoch)
);
insert into postbus.receipt_leaf (subscription_id, epoch, storage_id)
select distinct r.subscription_id, r.epoch, r.storage_id from postbus.receipt r where r.number is not null;

-- The number of segments that had been handed out before a leaf was begun: all in it have higher ones.
alter table postbus.log_leaf add column after_number bigint not null default 0;

-- A segment whose messages are asked for, and what is known of single messages beside the stretches.
create type postbus.looked_at as (
    "position"   bigint,
    lane         integer,
    txid         xid8,
    count        integer,
    published_at timestamptz
);
create type postbus.oddity as (
    id              bigint,
    subscription_id bigint,
    group_name      text,
    stretch         bigint,
    kind            text,
    txid            xid8,
    at              timestamptz,
    worker          text,
    attempts        integer,
    error           text
);

do $$
declare
    _leaf record;
begin
    for _leaf in select l.storage_id, l.epoch from postbus.log_leaf l loop
        execute format('create index on postbus.%I (subscription_id, id) where odd', format('receipt_%s_%s', _leaf.storage_id, _leaf.epoch));
    end loop;
end $$;
-- Of receipts for single messages it was not noted in which stretch they were.
update postbus.receipt r set odd = true, txid = '3' where r.id is not null;

-- The stretches of groups that are there: as the ledger tells, or from where they began.
with known as (
    select s.id as subscription_id, s.topic_id, coalesce(s.catch_up_of, s.id) as group_id, s.group_name, s.state, s.state_changed_at,
           l.lane, l.number, l.cursor, l.moved,
           count(l.moved) over (partition by s.id, l.lane order by l.number) as part
      from postbus.subscription s
      join (select r.subscription_id, r.lane, r.number, r.cursor, r.moved from postbus.receipt r where r.number is not null
             union all
            select c.subscription_id, c.lane, c.number, c.cursor, c.moved from postbus.cursor c) as l on l.subscription_id = s.id
), part as (
    select k.subscription_id, k.lane, k.part, k.topic_id, k.group_id, k.group_name, k.state, min(k.number) as number,
           (array_agg(k.cursor order by k.number) filter (where k.moved is not null))[1] as began,
           (array_agg(k.cursor order by k.number desc))[1] as reached,
           row_number() over (partition by k.subscription_id, k.lane order by k.part desc) = 1 as is_last
      from known k
     group by k.subscription_id, k.lane, k.part, k.topic_id, k.group_id, k.group_name, k.state
)
insert into postbus.stretch (subscription_id, lane, number, topic_id, group_id, group_name, txid, began, reached, died)
select p.subscription_id, p.lane, p.number, p.topic_id, p.group_id, p.group_name, '3',
       -- The row with which the first one began may have been folded.
       coalesce(p.began, s.started, row(row((s.subscribed).position, '2', '3:3:')::postbus.log_place, null, null, null, null, null, null, null, null)
                                    ::postbus.log_cursor),
       case when not p.is_last or p.state = 'CANCELLED' and not exists (select from postbus.lane l where l.subscription_id = p.subscription_id)
            then p.reached end,
       case when not p.is_last or p.state in ('DEAD', 'CANCELLED')
            then row(coalesce(pg_sequence_last_value('postbus.log_position'), 0), null, pg_current_snapshot())::postbus.log_place end
  from part p
  join postbus.subscription s on s.id = p.subscription_id;

-- Groups were not required for what had been there when they were subscribed: what all those before them have done stays completed.
insert into postbus.joining (topic_id, lane, at, position, snapshot, cursors, owners)
select late.topic_id, l.lane, late.subscribed_at, (late.subscribed).position, (late.subscribed).snapshot,
       coalesce(others.cursors, '{}'), array_fill(null::text, array[cardinality(coalesce(others.cursors, '{}'))])
  from postbus.subscription late
  join postbus.lane l on l.subscription_id = late.id
 cross join lateral (select array_agg(now.cursor) as cursors
                       from postbus.subscription s
                      cross join lateral (select c.cursor from postbus.cursor c where c.subscription_id = s.id and c.lane = l.lane
                                           order by c.number desc limit 1) as now
                      where s.topic_id = late.topic_id and s.group_name <> late.group_name and s.state in ('ACTIVE', 'PAUSED')
                        and coalesce(s.catch_up_of, s.id) < late.id) as others
 where late.catch_up_of is null and late.state <> 'CANCELLED'
   and exists (select from postbus.stretch st where st.topic_id = late.topic_id and st.group_name <> late.group_name);

drop view if exists postbus.deliveries, postbus.message_states, postbus_outbox.outbox, postbus_outbox.outbox_consumer_groups,
    postbus_outbox.outbox_topic_subscriptions;
drop function if exists postbus.delivery(bigint, integer, bigint, xid8, integer, timestamptz, integer, integer),
    postbus.state_of(bigint, integer, bigint, xid8, integer, timestamptz, integer, integer),
    postbus.settlement(bigint, integer, bigint, xid8, integer, timestamptz, integer, integer),
    postbus.deliveries_of(text, bigint), postbus.message_state(text, bigint),
    postbus.forget_subscriptions(bigint[]),
    postbus.keep_receipt(postbus.topic, bigint, integer, bigint[], bigint[], text[], integer[], text[], timestamptz);

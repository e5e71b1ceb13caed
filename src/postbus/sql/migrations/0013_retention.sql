-- Retention belongs to each topic by itself, also in storage that it shares.

-- How long messages are kept for a group that became DEAD.
alter table postbus.topic add column dead_retention interval not null default '72 hours';

-- It had no effect where it was shorter than retention, and has one now.
update postbus.topic t set zero_subscription_retention = t.retention
 where t.semantics = 'PUB_SUB' and t.zero_subscription_retention < t.retention;

-- Only a limit that somebody chose makes a group skip messages: a million was the default.
update postbus.subscription s set catch_up = s.catch_up || '{"max_messages": null}' where s.catch_up -> 'max_messages' = '1000000';
update postbus.scope c set catch_up = c.catch_up || '{"max_messages": null}' where c.catch_up -> 'max_messages' = '1000000';

-- What each topic has in a leaf. The sweep counts the messages behind the publishers, as for topic_count. When a closed leaf
-- is looked at for the first time, its topics are listed here; a topic's row goes when its segments are gone from the leaf.
create table postbus.leaf_topic (
    storage_id integer not null,
    epoch      integer not null,
    topic_id   bigint not null,
    messages   bigint not null default 0,
    first_at   timestamptz,             -- none of these was published earlier
    held_since timestamptz,             -- past its retention, and a group still needs it:
    held_by     bigint,                 -- a subscription ...
    held_lane   integer,                -- ... which has some of it before it in this lane, ...
    held_number bigint,                 -- ... as long as this is the lane's last row in the ledger
    thinned_to  bigint,                 -- up to this position nothing of the topic is left, since its max_retention was over
    primary key (storage_id, epoch, topic_id)
) with (fillfactor = 70);
create index leaf_topic_topic_idx on postbus.leaf_topic (topic_id, epoch);
create index leaf_topic_held_idx on postbus.leaf_topic (held_by, epoch) where held_by is not null;
insert into postbus.leaf_topic (storage_id, epoch, topic_id, messages, first_at)
select s.storage_id, s.position >> 43, s.topic_id,
       coalesce(sum(s.count) filter (where pg_visible_in_snapshot(s.txid, ((counted.cursor).seen).snapshot)), 0), min(s.published_at)
  from postbus.segment s
  left join postbus.storage_count counted on counted.storage_id = s.storage_id
 group by 1, 2, 3;
alter table postbus.log_leaf
    drop column held_since,
    add column listed boolean not null default false;      -- closed, and all of its topics stand in leaf_topic

-- What was in a leaf at a time: all up to a position, of transactions below txid. A leaf that is written to for longer than the
-- storage's period gets one for each period, so that a max_retention holds in it all the same.
create table postbus.leaf_mark (
    storage_id integer not null,
    epoch      integer not null,
    at         timestamptz not null,
    position   bigint not null,
    txid       xid8 not null,
    primary key (storage_id, epoch, at),
    foreign key (storage_id, epoch) references postbus.log_leaf on delete cascade
);

drop function if exists postbus.count_before(bigint, postbus.topic, pg_snapshot, bigint),
    postbus.count_unseen(postbus.topic, postbus.log_cursor, pg_snapshot),
    postbus.log_retention(integer), postbus.is_needed(integer, integer, timestamptz),
    postbus.record_loss(integer, integer, timestamptz), postbus.drop_leaves(integer, timestamptz),
    postbus.sweep_log(integer, timestamptz, boolean);

-- Processes that sweep and consume nothing. Those that consume stand in worker.
create table postbus.sweeper (
    name       text primary key,
    host       text not null,
    pid        integer not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp()
);

-- max_retention counts for what groups have taken out of the log, too: since it was published where this is null. What is there
-- already counts from now.
alter table postbus.retrying add column kept_from timestamptz default now();
alter table postbus.retrying alter column kept_from drop default;

-- The log: topics with semantics PUB_SUB, their groups, and how far each group has come.

alter table postbus.topic
    add column tracking text,
    add column lanes integer not null default 8,
    add column storage text not null default 'shared',
    add column storage_id integer,              -- where a PUB_SUB topic's segments go
    add column epoch_sequence text,             -- of that storage
    add column segment_size integer not null default 1000,
    add column zero_subscription_retention interval not null default '24 hours',
    add column block_writes_on_zero_subscriptions boolean not null default false,
    add column max_retention interval not null default '30 days',
    add column zombie_time interval not null default '7 days',
    add column heartbeat_interval interval not null default '60 seconds',
    add column heartbeat_timeout interval not null default '300 seconds';
drop view if exists postbus.topics, postbus.messages, postbus.dead_letters;
drop function if exists postbus.reserve_dedup(postbus.topic, text, timestamptz),
    postbus.redrive(text, bigint[], text, timestamptz, timestamptz, text, integer, double precision, boolean),
    postbus.purge_dead_letters(text, bigint[], timestamptz, boolean);

-- Numbers all segments. cache 1: positions are handed out in the order in which they are asked for.
create sequence postbus.log_position cache 1;

-- Where segments are kept: shared by topics of about the same retention, so that none of them keeps the data
-- of others for long; or by one topic alone.
--
-- Each has a sequence log_epoch_<id>, whose last value says which leaf is written to. A position is that epoch
-- and a number of log_position: epoch * 2^43 + number. Sequences do not belong to transactions: whoever asks
-- later gets a higher position, in every isolation level, and a new leaf begins by nextval of one sequence.
create table postbus.storage (
    id             integer primary key,
    name           text not null unique,
    topic_id       bigint unique,               -- null: shared
    retention      interval,                    -- shared: for topics that keep messages up to this long; null for longer
    period         interval not null,           -- a leaf is written to for about this long ...
    leaf_bytes     bigint not null default 1 << 30     -- ... or until it has this size
);

-- All messages that one publish call sends to one lane of a topic. Written once, never changed, dropped by leaf.
-- The id of a message is number * 1024 + its index, from 0 on.
create table postbus.segment (
    storage_id      integer not null,
    position        bigint not null,
    txid            xid8 not null,
    topic_id        bigint not null,
    lane            integer not null,
    count           integer not null,
    bytes           integer not null,
    published_at    timestamptz not null,
    content_type    text,                       -- of all messages ...
    content_types   text[],                     -- ... or of each
    keys            text[],
    correlation_ids text[],
    headers         jsonb[],
    payloads        bytea[] not null
) partition by list (storage_id);

-- The shared storages have a parent of their own: however many others there are, these are few.
create table postbus.segment_shared partition of postbus.segment for values in (1, 2, 3, 4, 5) partition by list (storage_id);

-- The leaves: table segment_<storage>_<epoch> each. All transactions that wrote to a closed leaf have an id below
-- closed_txid.
create table postbus.log_leaf (
    storage_id  integer not null,
    epoch       integer not null,
    opened_at   timestamptz not null default clock_timestamp(),
    closed_at   timestamptz,
    closed_txid xid8,
    primary key (storage_id, epoch)
);

-- A place in the log: all that is visible in the snapshot. Taken in this order: the last position handed out,
-- then the snapshot, then an own transaction id. So transactions above txid have all of their segments above
-- position, and those up to txid that the snapshot does not show are few: its open ones, and those between its
-- xmax and txid.
create type postbus.log_place as (
    position bigint,
    txid     xid8,
    snapshot pg_snapshot
);

-- How far a group has come in a lane. All that is visible in seen has been delivered. While there is a target,
-- the difference up to it is worked through in the order of positions, and is done up to and including the message
-- done_index of the segment at done_position.
-- Of segments up to since_bound only those count that are not older than since_at and since_id.
create type postbus.log_cursor as (
    seen          postbus.log_place,
    target        postbus.log_place,
    done_position bigint,
    done_index    integer,
    since_bound   bigint,
    since_at      timestamptz,
    since_id      bigint
);

-- What read_log returns: segments, and a last row that tells how to go on.
create type postbus.log_row as (
    position        bigint,
    lane            integer,
    count           integer,
    bytes           integer,
    first_index     integer,        -- of the first message that was not done
    published_at    timestamptz,
    content_type    text,
    content_types   text[],
    keys            text[],
    correlation_ids text[],
    headers         text[],
    payloads        bytea[],
    next_cursor     text,
    during_cursor   text,
    more            boolean,
    read_target     text
);

-- A group's registration on a topic.
create table postbus.subscription (
    id                 bigint generated always as identity primary key,
    topic_id           bigint not null,
    group_name         text not null,
    state              text not null default 'ACTIVE',
    start              text not null,
    start_at           timestamptz,
    start_id           bigint,
    subscribed_at      timestamptz not null default clock_timestamp(),
    subscribed         postbus.log_place not null,
    state_changed_at   timestamptz not null default clock_timestamp(),
    seen_at            timestamptz not null default clock_timestamp(),    -- last heartbeat of a member
    on_failure         text not null default 'block',
    passed_before      bigint not null default 0   -- messages of the topic that the group does not get
);
create unique index subscription_group_idx on postbus.subscription (topic_id, group_name) where state <> 'CANCELLED';

-- Who reads a lane for a group. A lane whose holder was not seen for the topic's lease goes to somebody else.
create table postbus.lane (
    subscription_id bigint not null,
    lane            integer not null,
    holder          text,
    token           uuid not null default gen_random_uuid(),
    held_since      timestamptz,
    held_number     bigint,                         -- of the ledger when it was taken
    deaths          integer not null default 0,     -- holders in a row that vanished before they had done anything
    careful_until   bigint,                         -- up to this position, the cause may be a message
    primary key (subscription_id, lane)
);

-- Cursors, as a ledger: only appended to, so that the hottest rows there are do not bloat; the row with the
-- highest number counts. It is the fence as well: who appends a number that is taken has lost the lane.
create table postbus.cursor (
    subscription_id bigint not null,
    lane            integer not null,
    number          bigint not null,
    cursor          postbus.log_cursor not null,
    passed          bigint not null default 0,      -- messages that the group is done with, since it subscribed
    at              timestamptz not null default clock_timestamp(),     -- when the group got there
    fenced_at       timestamptz,                    -- when somebody took the lane by this row
    primary key (subscription_id, lane, number)
);

-- Processes that work for a group.
create table postbus.group_worker (
    subscription_id bigint not null,
    worker          text not null,
    joined_at       timestamptz not null default clock_timestamp(),
    primary key (subscription_id, worker)
);

-- What each member of a group has done.
create table postbus.member (
    subscription_id bigint not null,
    name            text not null,
    processed       bigint not null default 0,
    failed          bigint not null default 0,
    filtered        bigint not null default 0,
    in_flight       bigint not null default 0,
    seen_at         timestamptz not null default clock_timestamp(),
    primary key (subscription_id, name)
);

-- Messages that a group tries again, or that wait behind one of their key.
create table postbus.retrying (
    subscription_id bigint not null,
    lane            integer not null,
    id              bigint not null,
    position        bigint not null,
    parked          boolean not null default false,
    due_at          timestamptz not null default clock_timestamp(),
    attempts        integer not null default 0,
    last_error      text,
    published_at    timestamptz not null,
    key             text,
    correlation_id  text,
    content_type    text not null,
    headers         jsonb,
    payload         bytea not null,
    primary key (subscription_id, lane, id)
);
create index retrying_due_idx on postbus.retrying (subscription_id, lane, due_at) where not parked;
create index retrying_key_idx on postbus.retrying (subscription_id, lane, key, position, id);

-- Dead letters of groups stand beside those of queues, whose subscription_id is 0.
alter table postbus.dead_letter add column subscription_id bigint not null default 0;
alter table postbus.dead_letter drop constraint dead_letter_pkey;
alter table postbus.dead_letter add primary key (id, subscription_id);

-- How many messages were published to a topic, counted behind the publishers by the sweep.
create table postbus.topic_count (
    topic_id bigint primary key,
    messages bigint not null default 0,
    bytes    bigint not null default 0
);
create table postbus.storage_count (
    storage_id integer primary key,
    cursor     postbus.log_cursor not null
);

-- Messages that were dropped before a group had them.
create table postbus.loss (
    subscription_id bigint not null,
    at              timestamptz not null default clock_timestamp(),
    reason          text not null,
    messages        bigint not null
);
create index loss_idx on postbus.loss (subscription_id);

-- The server that positions belong to: transaction ids of another one mean nothing here. A dump that is restored
-- makes this table anew, so its own oid tells too, also to who may not ask for the server's identifier.
create table postbus.cluster (
    only_row   boolean primary key default true check (only_row),
    identifier bigint,
    table_oid  oid not null,
    noted_at   timestamptz not null default clock_timestamp()
);
insert into postbus.cluster (table_oid) values ('postbus.cluster'::regclass);
do $$
begin
    update postbus.cluster set identifier = (select system_identifier from pg_control_system());
exception when insufficient_privilege then
    null;
end $$;

alter table postbus.cursor set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
alter table postbus.lane set (fillfactor = 50);
alter table postbus.member set (fillfactor = 50);

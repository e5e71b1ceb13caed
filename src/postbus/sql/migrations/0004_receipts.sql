-- breaking
-- Receipts, groups that catch up, and what is known of the jobs that sweep.

alter table postbus.subscription
    add column catch_up     jsonb not null default '{}',    -- how the group works through history: see catch_up_options
    add column catch_up_of  bigint,                         -- the group's subscription whose history this one reads
    add column missed       integer not null default 0,     -- looks in a row that found no heartbeat since the one before
    add column missed_at    timestamptz;
drop index postbus.subscription_group_idx;
create unique index subscription_group_idx on postbus.subscription (topic_id, group_name) where state <> 'CANCELLED' and catch_up_of is null;
create index subscription_catch_up_idx on postbus.subscription (catch_up_of) where catch_up_of is not null;

-- Cursors may have an end, until: they read up to that place and no further. And the ledger tells who moved them.
alter type postbus.log_cursor add attribute until postbus.log_place;
alter table postbus.cursor
    add column worker text,     -- that holds the lane
    add column moved  text;     -- why the cursor was set rather than advanced: start, seek, skip or catch-up

-- What follows from the storage's id is not kept.
drop view if exists postbus.topics, postbus.groups;
alter table postbus.topic drop column epoch_sequence;

-- Functions that are called in another way now.
drop function if exists postbus.ring(bigint[]), postbus.here(text), postbus.last_position(text), postbus.check_writable(postbus.topic),
    postbus.subscribe(text, text, text, timestamptz, bigint, text),
    postbus.group_heartbeat(bigint[], bigint[], text[], bigint[], bigint[], bigint[], bigint[], timestamptz);
update postbus.topic set tracking = 'OFFSET_WATERMARK' where semantics = 'PUB_SUB' and tracking is null;

-- What tells who settled which message of a topic with tracking REFERENCE_COUNTING, and when. Two kinds of rows:
-- the ledger's, moved here when it is folded: the first one whose cursor is past a message settled it; and one for each
-- message that was tried more than once or given up, with its id. Kept in leaves beside those of the segments, and
-- dropped with them.
create table postbus.receipt (
    storage_id      integer not null,
    epoch           integer not null,
    subscription_id bigint not null,
    lane            integer not null,
    at              timestamptz not null,
    worker          text,
    number          bigint,
    cursor          postbus.log_cursor,
    moved           text,
    id              bigint,
    outcome         text,
    attempts        integer,
    error           text
) partition by list (storage_id);

-- History that a group works through beside what is published now: by a subscription of its own, which ends where
-- the group began, or where it came back from the dead.
create table postbus.catch_up (
    subscription_id bigint primary key,
    of              bigint not null,            -- the group's subscription
    reason          text not null,
    status          text not null default 'IN_PROGRESS',
    total           bigint not null,            -- messages to be worked through
    skipped         bigint not null default 0,  -- older ones beyond max_messages
    started_at      timestamptz not null default clock_timestamp(),
    ended_at        timestamptz,
    processed       bigint,                     -- once it has ended
    allowed_rate    double precision,           -- as its process said last: messages per second,
    p95             interval,                   -- and how long its statements took
    reported_at     timestamptz
);
create index catch_up_of_idx on postbus.catch_up (of);

do $$
declare
    _storage integer;
    _leaf    record;
begin
    for _storage in select s.id from postbus.storage s loop
        execute format('create table postbus.%I partition of postbus.receipt for values in (%s) partition by list (epoch)',
                       format('receipt_%s', _storage), _storage);
        for _leaf in select l.epoch from postbus.log_leaf l where l.storage_id = _storage loop
            execute format('create table postbus.%I partition of postbus.%I for values in (%s)',
                           format('receipt_%s_%s', _storage, _leaf.epoch), format('receipt_%s', _storage), _leaf.epoch);
            execute format('create index on postbus.%I (subscription_id, lane, at, number)', format('receipt_%s_%s', _storage, _leaf.epoch));
            execute format('create index on postbus.%I (id, subscription_id) where id is not null', format('receipt_%s_%s', _storage, _leaf.epoch));
        end loop;
    end loop;
end $$;

-- Sweeping: how it is set, what each job has done, and how far behind it was.
drop function if exists postbus.sweep(integer, timestamptz), postbus.sweep_log(integer, timestamptz),
    postbus.drop_leaves(integer, timestamptz);
alter table postbus.log_leaf
    add column messages   bigint not null default 0,    -- counted behind the publishers, as in topic_count
    add column held_since timestamptz;                  -- past its retention, and a group still needs it
create table postbus.sweep_setting (
    only_row               boolean primary key default true check (only_row),
    interval               interval not null default '5 minutes',   -- between looks for what can be removed ...
    batch_size             integer not null default 10000,          -- ... this many rows at a time
    detection_interval     interval not null default '1 minute',    -- between looks for groups without heartbeats
    subscription_retention interval not null default '30 days'      -- of DEAD and CANCELLED ones
);
insert into postbus.sweep_setting default values;
create table postbus.sweep_job (
    job           text not null,
    storage_id    integer not null default 0,   -- of jobs that go through the log
    runs          bigint not null default 0,    -- those that were noted: see note_run
    started_at    timestamptz,
    took          interval,
    removed       bigint not null default 0,
    removed_total bigint not null default 0,
    failed_at     timestamptz,
    error         text,
    primary key (job, storage_id)
);
create table postbus.sweep_sample (
    at        timestamptz primary key,
    published bigint not null,                  -- messages of all PUB_SUB topics so far ...
    swept     bigint not null,                  -- ... those that were dropped ...
    backlog   bigint not null                   -- ... and those that should have been, of queues too
);
alter table postbus.sweep_job set (fillfactor = 50);
-- How long the handlers of members took, all together: for the average.
alter table postbus.member add column handling_seconds double precision not null default 0;

-- Views with the names and columns that fan-out outboxes have, for people who put this schema on their search path.
create schema if not exists postbus_outbox;

-- Queues that became PUB_SUB: what is left in the queue is worked off, and the groups that were named wait for that.
alter table postbus.subscription add column waits_for_queue boolean not null default false;
create table postbus.moving (
    topic_id  bigint primary key,
    since     timestamptz not null default clock_timestamp(),
    ordered   boolean not null,             -- whether the queue was
    first_id  bigint not null,              -- ids of the log begin here: those below are of the queue
    heir      bigint,                       -- the subscription that gets what no consumer of the queue takes
    hand_over boolean not null,             -- at once, without waiting for consumers of the queue
    users     text[],                       -- open transactions that may have published to the queue; null: not looked yet
    ended_at  timestamptz                   -- when the groups went on
);
drop function if exists postbus.claim(text, text, integer, interval, text, bigint, timestamptz);

-- Moving in: what was carried over from another outbox, so that no run of an import does it twice.
create table postbus.imported (
    source      text not null,                  -- the table that it came from
    source_id   text not null,
    message_id  bigint,                         -- null: looked at, and nobody needed it any more
    imported_at timestamptz not null default clock_timestamp(),
    primary key (source, source_id)
);
create table postbus.imported_group (
    source      text not null,
    topic_id    bigint not null,
    group_name  text not null,
    imported_at timestamptz not null default clock_timestamp(),
    primary key (source, topic_id, group_name)
);

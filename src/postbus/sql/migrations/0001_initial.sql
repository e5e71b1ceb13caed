-- The first tables: topics, the queue, its leases, and what is left when a message ends.

create table postbus.migration (
    number     integer primary key,
    name       text not null,
    breaking   boolean not null,     -- clients that do not know this migration must refuse the database
    applied_at timestamptz not null default clock_timestamp()
);

-- Which functions are installed: one row, replaced by each migrate.
create table postbus.installed (
    only_row      boolean primary key default true check (only_row),
    code_version  text not null,     -- the Postbus version that brought them
    code_checksum text not null,
    installed_at  timestamptz not null default clock_timestamp()
);

-- id is postbus.topic_id(name): publishing to a topic that nobody created needs no row, and so
-- never waits for another transaction that is the first to use the name.
-- The row '*' holds the options of all topics without a row of their own.
create table postbus.topic (
    id                bigint primary key,
    name              text not null unique,
    semantics         text not null default 'QUEUE',
    ordered           boolean not null default false,
    lease             interval not null default '30 seconds',
    max_attempts      integer not null default 25,
    retry_initial     interval not null default '1 second',
    retry_factor      double precision not null default 2,
    retry_max         interval not null default '1 hour',
    retry_jitter      double precision not null default 0.2,
    retention         interval not null default '0',
    dedup_window      interval not null default '24 hours',
    max_payload_bytes integer not null default 1048576,
    notify            boolean not null default false,
    paused_at         timestamptz,
    created_at        timestamptz not null default clock_timestamp()
);
insert into postbus.topic (id, name) values (0, '*');

-- Names that were published to without a row in topic. Not unique on purpose: see topic.
create table postbus.topic_seen (
    topic_id bigint not null,
    name     text not null
);
create index topic_seen_idx on postbus.topic_seen (topic_id);

create sequence postbus.message_id cache 1;

-- A message on its way through lease and finished, where many are stored in one row.
create type postbus.queue_message as (
    id             bigint,
    published_at   timestamptz,
    attempts       integer,
    priority       smallint,
    key            text,
    correlation_id text,
    content_type   text,
    headers        jsonb,
    payload        bytea
);

-- Messages that may be claimed now. A claim deletes the row and stores the message in a lease.
-- txid is what makes claims cheap beside old transactions: see code/2_claim/take_queued.sql.
create table postbus.queued (
    topic_id       bigint not null,
    txid           xid8 not null default pg_current_xact_id(),
    id             bigint not null default nextval('postbus.message_id'),
    published_at   timestamptz not null default clock_timestamp(),
    attempts       integer not null default 0,
    priority       smallint not null,
    ordered        boolean not null default false,
    parked         boolean not null default false,     -- waits behind another message of its key
    key            text,
    correlation_id text,
    content_type   text not null,
    headers        jsonb,
    payload        bytea not null
);
create index queued_claim_idx on postbus.queued (topic_id, priority, txid, id) where not parked;
create index queued_key_idx on postbus.queued (topic_id, key, id) where ordered;
create index queued_id_idx on postbus.queued using brin (id);

-- Messages that may be claimed later: scheduled ones, and those that wait for their next attempt.
create table postbus.delayed (
    topic_id       bigint not null,
    txid           xid8 not null default pg_current_xact_id(),
    id             bigint not null default nextval('postbus.message_id'),
    due_at         timestamptz not null,
    published_at   timestamptz not null default clock_timestamp(),
    attempts       integer not null default 0,
    priority       smallint not null,
    ordered        boolean not null default false,
    key            text,
    correlation_id text,
    content_type   text not null,
    headers        jsonb,
    payload        bytea not null,
    last_error     text
);
create index delayed_due_idx on postbus.delayed (topic_id, due_at);
create index delayed_txid_idx on postbus.delayed (topic_id, txid);
create index delayed_id_idx on postbus.delayed using brin (id);

-- Where a claimer's next search of a topic may start, per priority (index = priority + 1).
--
-- All that is visible in the snapshot and lies at or below (txid, id) has been taken. So the next
-- search looks above it, and at the transactions that were open in the snapshot: everything that
-- finished messages have left behind is never stepped over again, however old the oldest
-- transaction on the server is. A floor is a hint: without one the search starts at the beginning.
--
-- Claimers keep it as an opaque text and hand it back with their next claim.
create type postbus.queue_floor as (
    snapshots       pg_snapshot[],
    txids           xid8[],
    ids             bigint[],
    delays_snapshot pg_snapshot,       -- the same for the delayed messages: all that was due
    delays_due_at   timestamptz        -- by delays_due_at and visible in the snapshot is promoted
);

-- What one claim took. The row's existence is the fence: who finds it gone has lost the lease.
create table postbus.lease (
    token      uuid primary key,
    topic_id   bigint not null,
    member     text not null,
    claimed_at timestamptz not null default clock_timestamp(),
    ends_at    timestamptz not null,
    ordered    boolean not null,
    open_ids   bigint[] not null,                      -- not settled yet
    messages   postbus.queue_message[] not null
);
create index lease_ends_idx on postbus.lease (ends_at);

-- Keys of ordered topics that have a message in hand: head_id is the only one that may be claimed.
create table postbus.busy_key (
    topic_id bigint not null,
    key      text not null,
    head_id  bigint,
    primary key (topic_id, key)
);

create table postbus.finished (
    topic_id    bigint not null,
    finished_at timestamptz not null default clock_timestamp(),
    member      text not null,
    messages    postbus.queue_message[] not null
);
create index finished_idx on postbus.finished (topic_id, finished_at);

create table postbus.dead_letter (
    id             bigint primary key,
    topic_id       bigint not null,
    died_at        timestamptz not null default clock_timestamp(),
    reason         text not null,
    last_error     text,
    published_at   timestamptz not null,
    attempts       integer not null,
    priority       smallint not null,
    key            text,
    correlation_id text,
    content_type   text not null,
    headers        jsonb,
    payload        bytea not null
);
create index dead_letter_topic_idx on postbus.dead_letter (topic_id, id);

create table postbus.dedup (
    topic_id   bigint not null,
    dedup_key  text not null,
    message_id bigint not null,
    expires_at timestamptz not null,
    primary key (topic_id, dedup_key)
);
create index dedup_expires_idx on postbus.dedup (expires_at);

-- Processes that consume, as told by their heartbeats.
create table postbus.worker (
    name       text primary key,
    host       text not null,
    pid        integer not null,
    topics     text[] not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp()
);

-- pglz costs more than it saves on the way in: lz4 where the server has it, else no compression.
do $$
declare
    _has_lz4 boolean := exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals));
    _column  record;
begin
    for _column in
        values ('queued', 'payload'), ('delayed', 'payload'), ('dead_letter', 'payload'),
               ('lease', 'messages'), ('finished', 'messages')
    loop
        if _has_lz4 then
            execute format('alter table postbus.%I alter column %I set compression lz4', _column.column1, _column.column2);
        else
            execute format('alter table postbus.%I alter column %I set storage external', _column.column1, _column.column2);
        end if;
    end loop;
end $$;

-- Rows live for milliseconds here: clean up by what has died, not by the size of the table.
alter table postbus.queued set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
alter table postbus.lease set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
alter table postbus.delayed set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

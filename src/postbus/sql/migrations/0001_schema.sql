-- The schema as of Postbus 0.1: all tables and types, and what their comments say of them. Later migrations change it;
-- postbus/sql/schema.sql shows what has come of it.

-- Views with the names and columns that fan-out outboxes have, for people who put this schema on their search path.
create schema if not exists postbus_outbox;
-- What roles may do that were granted some topics only: see grant_topic.
create schema if not exists postbus_topics;

-- What is installed

create table postbus.migration (
    number     integer primary key,
    name       text not null,
    breaking   boolean not null,
    applied_at timestamptz not null default clock_timestamp()
);
comment on table postbus.migration is 'Migrations that were applied to this database, one row each. Written by `postbus migrate`.';
comment on column postbus.migration.number is 'The migration''s number.';
comment on column postbus.migration.name is 'The name of its file, without the number.';
comment on column postbus.migration.breaking is 'Clients that do not know this migration refuse the database.';
comment on column postbus.migration.applied_at is 'When it was applied.';

create table postbus.installed (
    only_row      boolean primary key default true check (only_row),
    code_version  text not null,
    code_checksum text not null,
    installed_at  timestamptz not null default clock_timestamp()
);
comment on table postbus.installed is 'The state of the functions and views: one row, replaced by each `postbus migrate` that changes them.';
comment on column postbus.installed.only_row is 'Always true, so that there is only one row.';
comment on column postbus.installed.code_version is 'The version of Postbus that installed the functions.';
comment on column postbus.installed.code_checksum is 'A hash of all SQL files: clients compare it with their own.';
comment on column postbus.installed.installed_at is 'When the functions were last replaced.';

create table postbus.cluster (
    only_row   boolean primary key default true check (only_row),
    identifier bigint,
    table_oid  oid not null,
    noted_at   timestamptz not null default clock_timestamp(),
    source     uuid not null default gen_random_uuid()
);
comment on table postbus.cluster is
    'The server that this database belongs to: one row. Cursors hold transaction ids, which mean nothing on another server. '
    'Written by the first migration and by rebase.';
comment on column postbus.cluster.only_row is 'Always true, so that there is only one row.';
comment on column postbus.cluster.identifier is 'The server''s system identifier; null if the migrating user may not read it.';
comment on column postbus.cluster.table_oid is
    'The oid of this table. A restored dump gives the table another one, so check_cluster notices the restore.';
comment on column postbus.cluster.noted_at is 'When the row was written.';
comment on column postbus.cluster.source is
    'Identifies this database: part of every event id. It stays the same over failover, upgrade and restore; rebase gives a '
    'copy that runs beside the original another one.';

-- Topics

create table postbus.topic (
    id                                 bigint primary key,
    name                               text not null unique,
    semantics                          text not null default 'QUEUE',
    ordered                            boolean not null default false,
    lease                              interval not null default '30 seconds',
    max_attempts                       integer not null default 25,
    retry_initial                      interval not null default '1 second',
    retry_factor                       double precision not null default 2,
    retry_max                          interval not null default '1 hour',
    retry_jitter                       double precision not null default 0.2,
    retention                          interval not null default '0',
    dedup_window                       interval not null default '24 hours',
    max_payload_bytes                  integer not null default 1048576,
    notify                             boolean not null default false,
    paused_at                          timestamptz,
    created_at                         timestamptz not null default clock_timestamp(),
    tracking                           text,
    lanes                              integer not null default 8,
    storage                            text not null default 'shared',
    storage_id                         integer,
    segment_size                       integer not null default 1000,
    zero_subscription_retention        interval not null default '24 hours',
    block_writes_on_zero_subscriptions boolean not null default false,
    max_retention                      interval not null default '30 days',
    zombie_time                        interval not null default '7 days',
    heartbeat_interval                 interval not null default '60 seconds',
    heartbeat_timeout                  interval not null default '300 seconds',
    named_lanes                        boolean not null default false,
    namespace                          text,
    task                               text,
    dead_retention                     interval not null default '72 hours'
);
create index topic_namespace_idx on postbus.topic (namespace) where namespace is not null;
create index topic_task_idx on postbus.topic (task) where task is not null;
insert into postbus.topic (id, name) values (0, '*');
comment on table postbus.topic is
    'Topics with options of their own. Written by create_topic, set_topic and the like. The row ''*'' holds the options of '
    'all topics that have no row: so publishing to a new name writes nothing that another transaction might wait for.';
comment on column postbus.topic.id is 'postbus.topic_id(name): follows from the name, so that it is known without a row.';
comment on column postbus.topic.name is 'The name that messages are published to.';
comment on column postbus.topic.semantics is 'QUEUE: each message goes to one consumer. PUB_SUB: each message goes to every group.';
comment on column postbus.topic.ordered is 'QUEUE: messages of one key are handled one after the other.';
comment on column postbus.topic.lease is 'How long a claimed message or a lane is held until its consumer has to extend the lease.';
comment on column postbus.topic.max_attempts is 'Attempts before a message becomes a dead letter.';
comment on column postbus.topic.retry_initial is 'The delay before the second attempt.';
comment on column postbus.topic.retry_factor is 'Each further delay is this many times longer.';
comment on column postbus.topic.retry_max is 'The longest delay.';
comment on column postbus.topic.retry_jitter is 'Each delay is changed at random by up to this share of it.';
comment on column postbus.topic.retention is 'How long messages are kept after they are settled. 0 for a QUEUE: deleted on ack.';
comment on column postbus.topic.dedup_window is 'How long a deduplication key is remembered.';
comment on column postbus.topic.max_payload_bytes is 'The largest payload.';
comment on column postbus.topic.notify is
    'Every commit that publishes wakes consumers by NOTIFY, even though such commits wait for one another.';
comment on column postbus.topic.paused_at is 'Since when the topic is paused: nothing is claimed; null: it is not paused.';
comment on column postbus.topic.created_at is 'When the row was written.';
comment on column postbus.topic.tracking is
    'PUB_SUB: REFERENCE_COUNTING keeps a receipt for each message and group, OFFSET_WATERMARK positions alone; null for a '
    'QUEUE.';
comment on column postbus.topic.lanes is 'PUB_SUB: into how many lanes keys are hashed.';
comment on column postbus.topic.storage is
    'PUB_SUB: shared: segments stand in a log storage beside those of other topics. own: in one of the topic''s own.';
comment on column postbus.topic.storage_id is 'PUB_SUB: the log storage of the topic''s segments; null for a QUEUE.';
comment on column postbus.topic.segment_size is 'PUB_SUB: how many messages of one call share a segment at most.';
comment on column postbus.topic.zero_subscription_retention is 'PUB_SUB: how long messages are kept while no group is subscribed.';
comment on column postbus.topic.block_writes_on_zero_subscriptions is 'PUB_SUB: publishing is refused while no group is ACTIVE.';
comment on column postbus.topic.max_retention is
    'PUB_SUB: after this time messages are removed even if a group has not had them; table loss says how many.';
comment on column postbus.topic.zombie_time is 'PUB_SUB: a group without progress for this long keeps no messages from being removed.';
comment on column postbus.topic.heartbeat_interval is 'PUB_SUB: how often groups send heartbeats.';
comment on column postbus.topic.heartbeat_timeout is 'PUB_SUB: a group without a heartbeat for this long is declared DEAD.';
comment on column postbus.topic.named_lanes is
    'PUB_SUB: every message has a key, and the key names the lane; `lanes` is then how many slices the lanes are read in.';
comment on column postbus.topic.namespace is 'Groups can subscribe to all topics of a namespace.';
comment on column postbus.topic.task is 'Groups can subscribe to all topics of a task.';
comment on column postbus.topic.dead_retention is 'PUB_SUB: how long messages are kept for a group that became DEAD.';

create table postbus.topic_seen (
    topic_id bigint not null,
    name     text not null
);
create index topic_seen_idx on postbus.topic_seen (topic_id);
comment on table postbus.topic_seen is
    'Names that were published to and have no row in topic. Written at the first publish to a name. Not unique on purpose: '
    'concurrent publishers do not wait for one another.';
comment on column postbus.topic_seen.topic_id is 'postbus.topic_id(name).';
comment on column postbus.topic_seen.name is 'The name.';

-- Queues

create sequence postbus.message_id increment by 1024 cache 1;
comment on sequence postbus.message_id is
    'Ids of the messages of queues. A publish call takes 1024 at a time: taking single ids would be a tenth of its cost.';

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
comment on type postbus.queue_message is 'A message of a queue within a lease or a row of finished, which hold many messages each.';
comment on column postbus.queue_message.id is 'The message''s id.';
comment on column postbus.queue_message.published_at is 'When it was published.';
comment on column postbus.queue_message.attempts is 'How many attempts have begun.';
comment on column postbus.queue_message.priority is '0 is claimed first, then 1, and so on.';
comment on column postbus.queue_message.key is 'The key by which messages are ordered; null: none.';
comment on column postbus.queue_message.correlation_id is 'What the publisher gave to connect messages.';
comment on column postbus.queue_message.content_type is 'The media type of the payload.';
comment on column postbus.queue_message.headers is 'Names and values that the publisher gave.';
comment on column postbus.queue_message.payload is 'The content.';

create type postbus.scan_floor as (
    xmax          xid8,
    open          xid8[],
    txids         xid8[],
    ids           bigint[],
    delays_due_at timestamptz,
    used          integer
);
comment on type postbus.scan_floor is
    'The scan floor of a claimer: below it no message is left. A claimer gets it as an opaque text and gives it to its next '
    'claim. It was taken with a snapshot: the transactions below xmax had ended, except for those in `open`. What that '
    'snapshot shows was claimed, up to (txid, id) of each priority (array index = priority + 1), or completely if there is no '
    'such pair. So the next search looks above that, and at the transactions that were open. Without a floor the search '
    'starts at the oldest id.';
comment on column postbus.scan_floor.xmax is 'The first transaction id that had not been assigned.';
comment on column postbus.scan_floor.open is 'The transactions below xmax that were open.';
comment on column postbus.scan_floor.txids is 'For each priority, the transaction of the last message that was claimed.';
comment on column postbus.scan_floor.ids is 'For each priority, the id of that message.';
comment on column postbus.scan_floor.delays_due_at is 'Delayed messages that were due by then, and visible, are promoted.';
comment on column postbus.scan_floor.used is 'How much has been claimed with this floor: a new one is taken now and then.';

create table postbus.queued (
    topic_id       bigint not null,
    txid           xid8 not null default pg_current_xact_id(),
    id             bigint not null default nextval('postbus.message_id'),
    published_at   timestamptz not null default clock_timestamp(),
    attempts       integer not null default 0,
    priority       smallint not null,
    ordered        boolean not null default false,
    parked         boolean not null default false,
    key            text,
    correlation_id text,
    content_type   text not null,
    headers        jsonb,
    payload        bytea not null
);
create index queued_claim_idx on postbus.queued (topic_id, priority, txid, id) where not parked;
create index queued_key_idx on postbus.queued (topic_id, key, id) where ordered;
create index queued_id_idx on postbus.queued using brin (id);
-- Rows live for milliseconds: vacuum by what has died, not by the size of the table. The same for lease, delayed and deferred.
alter table postbus.queued set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
comment on table postbus.queued is
    'Messages of queues that may be claimed now. Inserted by publish and by promote_delayed; a claim deletes the row and puts '
    'the message into a lease.';
comment on column postbus.queued.topic_id is 'The topic.';
comment on column postbus.queued.txid is
    'The transaction that inserted the row. With it, claims step over nothing that old transactions keep alive: see type '
    'scan_floor.';
comment on column postbus.queued.id is 'The message''s id.';
comment on column postbus.queued.published_at is 'When the message was published.';
comment on column postbus.queued.attempts is 'How many attempts have begun.';
comment on column postbus.queued.priority is '0 is claimed first, then 1, and so on.';
comment on column postbus.queued.ordered is 'The topic was ordered when the message was published, and the message has a key.';
comment on column postbus.queued.parked is 'The message waits behind another one of its key, which is in hand.';
comment on column postbus.queued.key is 'The key by which messages are ordered; null: none.';
comment on column postbus.queued.correlation_id is 'What the publisher gave to connect messages.';
comment on column postbus.queued.content_type is 'The media type of the payload.';
comment on column postbus.queued.headers is 'Names and values that the publisher gave.';
comment on column postbus.queued.payload is 'The content.';

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
    last_error     text,
    trial          integer,
    outlasted      integer
);
create index delayed_due_idx on postbus.delayed (topic_id, due_at);
create index delayed_txid_idx on postbus.delayed (topic_id, txid);
create index delayed_id_idx on postbus.delayed using brin (id);
create index delayed_trial_idx on postbus.delayed (topic_id, due_at, id) where trial is not null;
alter table postbus.delayed set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
comment on table postbus.delayed is
    'Messages of queues that may be claimed later: scheduled ones, those that wait for their next attempt, and suspects. '
    'Inserted by publish, retry and return_expired; promote_delayed moves rows to queued when they are due.';
comment on column postbus.delayed.topic_id is 'The topic.';
comment on column postbus.delayed.txid is 'The transaction that inserted the row.';
comment on column postbus.delayed.id is 'The message''s id.';
comment on column postbus.delayed.due_at is 'When the message may be claimed.';
comment on column postbus.delayed.published_at is 'When the message was published.';
comment on column postbus.delayed.attempts is 'How many attempts have begun.';
comment on column postbus.delayed.priority is '0 is claimed first, then 1, and so on.';
comment on column postbus.delayed.ordered is 'The topic was ordered, and the message has a key.';
comment on column postbus.delayed.key is 'The key by which messages are ordered; null: none.';
comment on column postbus.delayed.correlation_id is 'What the publisher gave to connect messages.';
comment on column postbus.delayed.content_type is 'The media type of the payload.';
comment on column postbus.delayed.headers is 'Names and values that the publisher gave.';
comment on column postbus.delayed.payload is 'The content.';
comment on column postbus.delayed.last_error is 'The error of the last attempt.';
comment on column postbus.delayed.trial is 'The message is a suspect: at most this many suspects are claimed together. Null: it is none.';
comment on column postbus.delayed.outlasted is 'How often the suspect took longer than the time for which it was tried alone.';

create table postbus.lease (
    token     uuid primary key,
    topic_id  bigint not null,
    member    text not null,
    ends_at   timestamptz not null,
    ordered   boolean not null,
    open_ids  bigint[] not null,
    messages  postbus.queue_message[] not null,
    alone     boolean,
    outlasted integer
);
create index lease_ends_idx on postbus.lease (ends_at);
-- pglz takes longer over the ids of a lease, a millisecond for a thousand, than all else that is done to them.
alter table postbus.lease alter column open_ids set storage external;
alter table postbus.lease set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
comment on table postbus.lease is
    'What one claim took from a queue, all of its messages in one row. Inserted by claim; changed by settlements; deleted '
    'when all messages are settled, or by return_expired. The row is the fence: if it is gone, the claimer has lost the '
    'lease.';
comment on column postbus.lease.token is 'A random number that proves the lease.';
comment on column postbus.lease.topic_id is 'The topic.';
comment on column postbus.lease.member is 'The member that claimed the messages.';
comment on column postbus.lease.ends_at is 'When the lease ends, unless it is extended.';
comment on column postbus.lease.ordered is 'The topic was ordered.';
comment on column postbus.lease.open_ids is 'The ids of the messages that are not settled yet.';
comment on column postbus.lease.messages is 'All messages of the claim.';
comment on column postbus.lease.alone is 'The process had no other message in hand; null: that is found out when the lease has ended.';
comment on column postbus.lease.outlasted is 'How often the suspect in it took longer than the time for which it was tried alone.';

create table postbus.crowded (
    member text not null
);
create index crowded_member_idx on postbus.crowded (member);
comment on table postbus.crowded is
    'Members that had several messages in hand when their leases ended, so that none of these is charged. Written by '
    'return_expired. A table of its own: marking the other messages would wait for members that are just taking them.';
comment on column postbus.crowded.member is 'The member''s name.';

create table postbus.busy_key (
    topic_id bigint not null,
    key      text not null,
    head_id  bigint,
    primary key (topic_id, key)
);
comment on table postbus.busy_key is
    'Keys of ordered queues of which a message is in hand. Inserted by claims, deleted when the key is passed on.';
comment on column postbus.busy_key.topic_id is 'The topic.';
comment on column postbus.busy_key.key is 'The key.';
comment on column postbus.busy_key.head_id is 'The only message of the key that may be claimed.';

create table postbus.finished (
    topic_id    bigint not null,
    finished_at timestamptz not null default clock_timestamp(),
    member      text not null,
    messages    postbus.queue_message[] not null
);
create index finished_idx on postbus.finished (topic_id, finished_at);
comment on table postbus.finished is 'Settled messages of queues that have a retention. Inserted by ack, deleted by the sweep.';
comment on column postbus.finished.topic_id is 'The topic.';
comment on column postbus.finished.finished_at is 'When the messages were settled.';
comment on column postbus.finished.member is 'The member that settled them.';
comment on column postbus.finished.messages is 'The messages that were settled together.';

create table postbus.dead_letter (
    id              bigint not null,
    topic_id        bigint not null,
    died_at         timestamptz not null default clock_timestamp(),
    reason          text not null,
    last_error      text,
    published_at    timestamptz not null,
    attempts        integer not null,
    priority        smallint not null,
    key             text,
    correlation_id  text,
    content_type    text not null,
    headers         jsonb,
    payload         bytea not null,
    subscription_id bigint not null default 0,
    stretch         bigint,
    primary key (id, subscription_id)
);
create index dead_letter_topic_idx on postbus.dead_letter (topic_id, id);
comment on table postbus.dead_letter is
    'Messages that were given up, of queues and of groups. Inserted when a settlement gives a message up; deleted by redrive '
    'and purge_dead_letters.';
comment on column postbus.dead_letter.id is 'The message''s id.';
comment on column postbus.dead_letter.topic_id is 'The topic.';
comment on column postbus.dead_letter.died_at is 'When the message was given up.';
comment on column postbus.dead_letter.reason is 'Why it was given up.';
comment on column postbus.dead_letter.last_error is 'The error of its last attempt.';
comment on column postbus.dead_letter.published_at is 'When it was published.';
comment on column postbus.dead_letter.attempts is 'How many attempts it had.';
comment on column postbus.dead_letter.priority is 'The priority with which it was published.';
comment on column postbus.dead_letter.key is 'The key by which messages are ordered; null: none.';
comment on column postbus.dead_letter.correlation_id is 'What the publisher gave to connect messages.';
comment on column postbus.dead_letter.content_type is 'The media type of the payload.';
comment on column postbus.dead_letter.headers is 'Names and values that the publisher gave.';
comment on column postbus.dead_letter.payload is 'The content.';
comment on column postbus.dead_letter.subscription_id is 'The group''s subscription; 0 for a queue.';
comment on column postbus.dead_letter.stretch is 'The stretch in which the group read the message: see deferred.stretch.';

create table postbus.dedup (
    topic_id   bigint not null,
    dedup_key  text not null,
    message_id bigint not null,
    expires_at timestamptz not null,
    primary key (topic_id, dedup_key)
);
create index dedup_expires_idx on postbus.dedup (expires_at);
comment on table postbus.dedup is 'Deduplication keys within their window. Inserted by publish, deleted by the sweep.';
comment on column postbus.dedup.topic_id is 'The topic.';
comment on column postbus.dedup.dedup_key is 'The key that the publisher gave.';
comment on column postbus.dedup.message_id is 'The message that was published first with this key.';
comment on column postbus.dedup.expires_at is 'When the window ends.';

-- The log

create sequence postbus.segment_number cache 1;
comment on sequence postbus.segment_number is
    'Numbers all segments of all log storages. Sequences do not belong to transactions, and cache 1 hands numbers out in the '
    'order in which they are asked for: who asks later gets a higher one, at every isolation level.';

create table postbus.log_storage (
    id              integer primary key,
    name            text not null unique,
    topic_id        bigint unique,
    retention       interval,
    period          interval not null,
    partition_bytes bigint not null default 1 << 30
);
comment on table postbus.log_storage is
    'Log storages: where segments are kept, shared by topics of about the same retention, or of one topic alone. Inserted '
    'with the first topic that needs the storage. Each storage has a sequence log_epoch_<id>, whose last value is the epoch '
    'of the partition that is written to. A sequence of a segment is that epoch and a number of segment_number: epoch * 2^43 '
    '+ number.';
comment on column postbus.log_storage.id is '1 to 5 are the shared storages; own storages begin at 100.';
comment on column postbus.log_storage.name is 'What is stored in it, for people.';
comment on column postbus.log_storage.topic_id is 'The only topic of an own storage; null for a shared one.';
comment on column postbus.log_storage.retention is 'Shared: topics that keep messages up to this long are stored here; null: for longer, or own.';
comment on column postbus.log_storage.period is 'A partition is written to for about this long ...';
comment on column postbus.log_storage.partition_bytes is '... or until it has this size.';

create table postbus.segment (
    storage_id      integer not null,
    sequence        bigint not null,
    txid            xid8 not null,
    topic_id        bigint not null,
    lane            integer not null,
    count           integer not null,
    bytes           integer not null,
    published_at    timestamptz not null,
    content_type    text,
    content_types   text[],
    keys            text[],
    correlation_ids text[],
    headers         jsonb[],
    payloads        bytea[] not null,
    in_lines        boolean
) partition by list (storage_id);
-- The shared storages have a parent of their own: however many other storages there are, these are few.
create table postbus.segment_shared partition of postbus.segment for values in (1, 2, 3, 4, 5) partition by list (storage_id);
comment on table postbus.segment_shared is 'The segments of the shared storages.';
comment on table postbus.segment is
    'The log: all messages that one publish call sends to one lane of a topic. Written once, never changed, and removed with '
    'its partition, or by thinning. The id of a message is the segment''s number * 1024 + the message''s index, from 0 on.';
comment on column postbus.segment.storage_id is 'The log storage.';
comment on column postbus.segment.sequence is
    'The segment''s sequence: epoch * 2^43 + number. It is given before the commit, so it does not tell the order of commits.';
comment on column postbus.segment.txid is 'The publishing transaction: a cursor''s snapshot tells whether it is visible.';
comment on column postbus.segment.topic_id is 'The topic.';
comment on column postbus.segment.lane is 'The lane.';
comment on column postbus.segment.count is 'How many messages the segment has.';
comment on column postbus.segment.bytes is 'How many bytes its payloads have.';
comment on column postbus.segment.published_at is 'When the messages were published.';
comment on column postbus.segment.content_type is 'The media type of all payloads; null: each has its own.';
comment on column postbus.segment.content_types is 'The media type of each payload; null: all have the same.';
comment on column postbus.segment.keys is 'The key of each message; null: none has one.';
comment on column postbus.segment.correlation_ids is 'The correlation id of each message; null: none has one.';
comment on column postbus.segment.headers is 'The headers of each message; null: none has any.';
comment on column postbus.segment.payloads is 'The payloads; or, with in_lines, one element that has a line for each message.';
comment on column postbus.segment.in_lines is 'The messages were published as lines: see publish_lines.';

create table postbus.log_partition (
    storage_id   integer not null,
    epoch        integer not null,
    opened_at    timestamptz not null default clock_timestamp(),
    closed_at    timestamptz,
    closed_txid  xid8,
    messages     bigint not null default 0,
    listed       boolean not null default false,
    after_number bigint not null default 0,
    primary key (storage_id, epoch)
);
comment on table postbus.log_partition is
    'The partitions of the log: tables segment_<storage>_<epoch> and receipt_<storage>_<epoch>. Inserted by add_partition, '
    'changed and deleted by sweep_log.';
comment on column postbus.log_partition.storage_id is 'The log storage.';
comment on column postbus.log_partition.epoch is 'The number of the partition within its storage.';
comment on column postbus.log_partition.opened_at is 'When the partition was added.';
comment on column postbus.log_partition.closed_at is 'When the partition was closed: it gets no more segments; null while it is open.';
comment on column postbus.log_partition.closed_txid is 'All transactions that wrote to the closed partition have a lower id.';
comment on column postbus.log_partition.messages is 'How many messages it has, counted behind the publishers.';
comment on column postbus.log_partition.listed is 'It is closed, and all of its topics have a row in partition_topic.';
comment on column postbus.log_partition.after_number is
    'The last segment number that was handed out before the partition was begun: all of its segments have higher ones.';

create table postbus.partition_topic (
    storage_id    integer not null,
    epoch         integer not null,
    topic_id      bigint not null,
    messages      bigint not null default 0,
    first_at      timestamptz,
    needed_since  timestamptz,
    needed_by     bigint,
    needed_lane   integer,
    needed_number bigint,
    thinned_to    bigint,
    primary key (storage_id, epoch, topic_id)
) with (fillfactor = 70);
create index partition_topic_topic_idx on postbus.partition_topic (topic_id, epoch);
create index partition_topic_needed_idx on postbus.partition_topic (needed_by, epoch) where needed_by is not null;
comment on table postbus.partition_topic is
    'What each topic has in a partition of the log. Counted by the sweep behind the publishers; complete when the partition '
    'is listed. Deleted when the topic''s segments are gone from the partition.';
comment on column postbus.partition_topic.storage_id is 'The log storage.';
comment on column postbus.partition_topic.epoch is 'The partition.';
comment on column postbus.partition_topic.topic_id is 'The topic.';
comment on column postbus.partition_topic.messages is 'How many messages of the topic the partition has.';
comment on column postbus.partition_topic.first_at is 'No message of the topic in the partition was published earlier.';
comment on column postbus.partition_topic.needed_since is 'Since when the messages are past their retention and a group still needs them.';
comment on column postbus.partition_topic.needed_by is 'That group''s subscription.';
comment on column postbus.partition_topic.needed_lane is 'A lane in which it has some of the messages before it ...';
comment on column postbus.partition_topic.needed_number is '... as long as this is the lane''s last row in the cursor ledger.';
comment on column postbus.partition_topic.thinned_to is 'Up to this segment nothing of the topic is left, since its max_retention was over.';

create table postbus.partition_mark (
    storage_id integer not null,
    epoch      integer not null,
    at         timestamptz not null,
    sequence   bigint not null,
    txid       xid8 not null,
    primary key (storage_id, epoch, at),
    foreign key (storage_id, epoch) references postbus.log_partition on delete cascade
);
comment on table postbus.partition_mark is
    'What was in a partition at a time, one mark for each period of the storage, if the partition is written to for longer '
    'than that. So a max_retention holds within such a partition. Written by sweep_log.';
comment on column postbus.partition_mark.storage_id is 'The log storage.';
comment on column postbus.partition_mark.epoch is 'The partition.';
comment on column postbus.partition_mark.at is 'When the mark was made.';
comment on column postbus.partition_mark.sequence is 'All segments that were there have a sequence up to this one ...';
comment on column postbus.partition_mark.txid is '... and come from transactions below this id.';

create type postbus.log_position as (
    sequence bigint,
    txid     xid8,
    snapshot pg_snapshot
);
comment on type postbus.log_position is
    'A position in the log: all that is visible in the snapshot. Its parts are taken in this order: the last sequence handed '
    'out, the snapshot, an own transaction id. So transactions above txid have all of their segments above that sequence, and '
    'only few up to txid are not visible: those that were open, and those between the snapshot''s xmax and txid.';
comment on column postbus.log_position.sequence is 'The last sequence that was handed out.';
comment on column postbus.log_position.txid is 'The transaction id that was taken after the snapshot; null: none was taken.';
comment on column postbus.log_position.snapshot is 'What is visible.';

create type postbus.log_cursor as (
    seen           postbus.log_position,
    target         postbus.log_position,
    done_sequence  bigint,
    done_index     integer,
    since_bound    bigint,
    since_at       timestamptz,
    since_id       bigint,
    until          postbus.log_position,
    since_snapshot pg_snapshot
);
comment on type postbus.log_cursor is
    'A group''s position in a lane. All that is visible in `seen` was delivered. While there is a target, the difference up '
    'to it is worked through in the order of sequences.';
comment on column postbus.log_cursor.seen is 'What was delivered.';
comment on column postbus.log_cursor.target is 'The position up to which the cursor is on its way; null: it is not.';
comment on column postbus.log_cursor.done_sequence is 'On the way to the target: the last segment of which messages are done ...';
comment on column postbus.log_cursor.done_index is '... up to and including the message with this index.';
comment on column postbus.log_cursor.since_bound is 'Up to this sequence, older messages do not count ...';
comment on column postbus.log_cursor.since_at is '... if they were published before this time ...';
comment on column postbus.log_cursor.since_id is '... or have a lower id than this.';
comment on column postbus.log_cursor.until is 'The position at which the cursor ends; null: it has no end.';
comment on column postbus.log_cursor.since_snapshot is 'since_at holds for what is visible in this snapshot; null: for all.';

create type postbus.log_row as (
    sequence        bigint,
    lane            integer,
    count           integer,
    bytes           integer,
    first_index     integer,
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
comment on type postbus.log_row is 'A row of read_log: a segment, or the last row, which tells how to go on.';
comment on column postbus.log_row.sequence is 'The segment''s sequence; null in the last row.';
comment on column postbus.log_row.lane is 'The lane.';
comment on column postbus.log_row.count is 'How many messages the segment has.';
comment on column postbus.log_row.bytes is 'How many bytes its payloads have.';
comment on column postbus.log_row.first_index is 'The index of the first message that is not done.';
comment on column postbus.log_row.published_at is 'When the messages were published.';
comment on column postbus.log_row.content_type is 'The media type of all payloads.';
comment on column postbus.log_row.content_types is 'The media type of each payload.';
comment on column postbus.log_row.keys is 'The key of each message.';
comment on column postbus.log_row.correlation_ids is 'The correlation id of each message.';
comment on column postbus.log_row.headers is 'The headers of each message, as JSON.';
comment on column postbus.log_row.payloads is 'The payloads, or the lines of all: see segment.payloads.';
comment on column postbus.log_row.next_cursor is 'Last row: the cursor when all rows are done.';
comment on column postbus.log_row.during_cursor is 'Last row: the cursor while some rows are not done.';
comment on column postbus.log_row.more is 'Last row: there was more to read than was asked for.';
comment on column postbus.log_row.read_target is 'Last row: the position up to which was read.';

create table postbus.topic_count (
    topic_id bigint primary key,
    messages bigint not null default 0,
    bytes    bigint not null default 0
);
comment on table postbus.topic_count is
    'How many messages were published to each PUB_SUB topic so far. Counted by the sweep, behind the publishers.';
comment on column postbus.topic_count.topic_id is 'The topic.';
comment on column postbus.topic_count.messages is 'How many messages.';
comment on column postbus.topic_count.bytes is 'How many bytes of payload.';

create table postbus.storage_count (
    storage_id integer primary key,
    cursor     postbus.log_cursor not null
);
comment on table postbus.storage_count is 'How far the sweep has counted in each log storage.';
comment on column postbus.storage_count.storage_id is 'The log storage.';
comment on column postbus.storage_count.cursor is 'All that is visible in it was counted in topic_count.';

-- Groups

create table postbus.subscription (
    id               bigint generated always as identity primary key,
    topic_id         bigint not null,
    group_name       text not null,
    state            text not null default 'ACTIVE',
    start            text not null,
    start_at         timestamptz,
    start_id         bigint,
    subscribed_at    timestamptz not null default clock_timestamp(),
    subscribed       postbus.log_position not null,
    state_changed_at timestamptz not null default clock_timestamp(),
    seen_at          timestamptz not null default clock_timestamp(),
    on_failure       text not null default 'block',
    passed_before    bigint not null default 0,
    catch_up         jsonb not null default '{}',
    catch_up_of      bigint,
    missed           integer not null default 0,
    missed_at        timestamptz,
    waits_for_queue  boolean not null default false,
    keys             text[],
    scope_id         bigint,
    started          postbus.log_cursor,
    stopped_at       timestamptz,
    stopped_by       text,
    failing_since    timestamptz
);
create unique index subscription_group_idx on postbus.subscription (topic_id, group_name) where state <> 'CANCELLED' and catch_up_of is null;
create index subscription_catch_up_idx on postbus.subscription (catch_up_of) where catch_up_of is not null;
create index subscription_name_idx on postbus.subscription (group_name, topic_id);
comment on table postbus.subscription is
    'A group''s registration on a topic. A late group''s history is read by a subscription of its own (catch_up_of). Written '
    'by subscribe, by heartbeats, and by the sweep.';
comment on column postbus.subscription.id is 'The subscription.';
comment on column postbus.subscription.topic_id is 'The topic.';
comment on column postbus.subscription.group_name is 'The group.';
comment on column postbus.subscription.state is 'ACTIVE, PAUSED, DEAD (without heartbeats), or CANCELLED, which is final.';
comment on column postbus.subscription.start is 'Where the group began: FROM_NOW, FROM_BEGINNING, FROM_TIMESTAMP or FROM_MESSAGE_ID.';
comment on column postbus.subscription.start_at is 'FROM_TIMESTAMP: the time.';
comment on column postbus.subscription.start_id is 'FROM_MESSAGE_ID: the id.';
comment on column postbus.subscription.subscribed_at is 'When the group subscribed.';
comment on column postbus.subscription.subscribed is 'The end of the log at that time.';
comment on column postbus.subscription.state_changed_at is 'When the state last changed.';
comment on column postbus.subscription.seen_at is 'The group''s last heartbeat.';
comment on column postbus.subscription.on_failure is 'What a failed message does to later ones of its key: block, or pass.';
comment on column postbus.subscription.passed_before is
    'How many messages of topic_count the group does not get: published before it began, skipped, or lost.';
comment on column postbus.subscription.catch_up is 'How the group works through history: see catch_up_options.';
comment on column postbus.subscription.catch_up_of is 'This subscription reads the history of that one, of the same group.';
comment on column postbus.subscription.missed is 'How many looks of detect_dead in a row have found no new heartbeat.';
comment on column postbus.subscription.missed_at is 'When the last of these looks was.';
comment on column postbus.subscription.waits_for_queue is 'The topic was a QUEUE, and the group begins when that is empty.';
comment on column postbus.subscription.keys is 'The keys of the messages that the group wants; null: all.';
comment on column postbus.subscription.scope_id is 'The scope that made this subscription; null: the group subscribed to the topic itself.';
comment on column postbus.subscription.started is 'The cursor at which the group began.';
comment on column postbus.subscription.stopped_at is 'When the last process of the group stopped in an orderly way. It holds while seen_at is not later.';
comment on column postbus.subscription.stopped_by is 'That process.';
comment on column postbus.subscription.failing_since is 'Since when more of the group''s calls fail than its health limits allow.';

create table postbus.lane (
    subscription_id bigint not null,
    lane            integer not null,
    holder          text,
    token           uuid not null default gen_random_uuid(),
    held_since      timestamptz,
    held_number     bigint,
    deaths          integer not null default 0,
    careful_until   bigint,
    primary key (subscription_id, lane)
);
alter table postbus.lane set (fillfactor = 50);
comment on table postbus.lane is
    'Which process reads each lane for a group. Written by lease_lanes and release_lanes. A lane goes to another process if '
    'its holder was not seen for the topic''s lease.';
comment on column postbus.lane.subscription_id is 'The group''s subscription.';
comment on column postbus.lane.lane is 'The lane.';
comment on column postbus.lane.holder is 'The process that reads the lane; null: none.';
comment on column postbus.lane.token is 'A random number that proves that the holder has the lane.';
comment on column postbus.lane.held_since is 'When the holder took it.';
comment on column postbus.lane.held_number is 'The lane''s last row in the cursor ledger at that time.';
comment on column postbus.lane.deaths is 'How many holders in a row vanished before they had done anything.';
comment on column postbus.lane.careful_until is 'Up to this sequence a message may have killed those holders.';

create table postbus.cursor (
    subscription_id bigint not null,
    lane            integer not null,
    number          bigint not null,
    cursor          postbus.log_cursor not null,
    passed          bigint not null default 0,
    at              timestamptz not null default clock_timestamp(),
    fenced_at       timestamptz,
    worker          text,
    moved           text,
    handed_out      bigint not null default coalesce(pg_sequence_last_value('postbus.segment_number'), 0),
    primary key (subscription_id, lane, number)
);
alter table postbus.cursor set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
comment on table postbus.cursor is
    'The ledger of cursors: one row for each step of each lane. The row with the highest number counts. Rows are only '
    'inserted, so that the hottest rows there are do not bloat; the sweep deletes older ones. The primary key is the fence: '
    'who inserts a number that is taken has lost the lane.';
comment on column postbus.cursor.subscription_id is 'The group''s subscription.';
comment on column postbus.cursor.lane is 'The lane.';
comment on column postbus.cursor.number is 'Counts the steps, from 1 on.';
comment on column postbus.cursor.cursor is 'How far the group has come.';
comment on column postbus.cursor.passed is 'How many messages the group is done with in this lane since it subscribed.';
comment on column postbus.cursor.at is 'When the group got there.';
comment on column postbus.cursor.fenced_at is 'When a process took the lane by inserting this row; null: it is a step of the holder.';
comment on column postbus.cursor.worker is 'The process that held the lane.';
comment on column postbus.cursor.moved is 'Why the cursor was set: start, seek, skip or catch-up; null: it advanced.';
comment on column postbus.cursor.handed_out is 'The last segment number that was handed out when the row was written: rebase goes by it.';

create table postbus.settled_ahead (
    subscription_id bigint not null,
    lane            integer not null,
    sequence        bigint not null,
    indexes         int4multirange not null,
    primary key (subscription_id, lane, sequence)
);
comment on table postbus.settled_ahead is
    'Messages that a group has settled although its cursor is not past them. Whoever takes the lane reads them again, and '
    'passes them by. Written by defer, note_done and settlements; deleted when the cursor is past them.';
comment on column postbus.settled_ahead.subscription_id is 'The group''s subscription.';
comment on column postbus.settled_ahead.lane is 'The lane.';
comment on column postbus.settled_ahead.sequence is 'The segment.';
comment on column postbus.settled_ahead.indexes is 'Which messages of the segment.';

create table postbus.group_worker (
    subscription_id bigint not null,
    worker          text not null,
    joined_at       timestamptz not null default clock_timestamp(),
    primary key (subscription_id, worker)
);
comment on table postbus.group_worker is
    'Which processes work for which groups: lanes are shared out among them. Written by lease_lanes and leave_groups.';
comment on column postbus.group_worker.subscription_id is 'The group''s subscription.';
comment on column postbus.group_worker.worker is 'The process.';
comment on column postbus.group_worker.joined_at is 'When it joined.';

create table postbus.member (
    subscription_id  bigint not null,
    name             text not null,
    processed        bigint not null default 0,
    failed           bigint not null default 0,
    filtered         bigint not null default 0,
    in_flight        bigint not null default 0,
    seen_at          timestamptz not null default clock_timestamp(),
    handling_seconds double precision not null default 0,
    primary key (subscription_id, name)
);
alter table postbus.member set (fillfactor = 50);
comment on table postbus.member is 'What each member of a group has done. Written by group_heartbeat.';
comment on column postbus.member.subscription_id is 'The group''s subscription.';
comment on column postbus.member.name is 'The member.';
comment on column postbus.member.processed is 'How many messages it has handled.';
comment on column postbus.member.failed is 'How many attempts have failed.';
comment on column postbus.member.filtered is 'How many messages its filter has passed by.';
comment on column postbus.member.in_flight is 'How many messages it had in hand at its last heartbeat.';
comment on column postbus.member.seen_at is 'Its last heartbeat.';
comment on column postbus.member.handling_seconds is 'How long its handlers took, all together.';

create table postbus.deferred (
    subscription_id bigint not null,
    lane            integer not null,
    id              bigint not null,
    sequence        bigint not null,
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
    buffered        boolean not null default false,
    token           uuid,
    member          text,
    kept_from       timestamptz,
    stretch         bigint,
    suspected       boolean not null default false,
    outlasted       integer,
    alone           boolean,
    primary key (subscription_id, lane, id)
);
create index deferred_key_idx on postbus.deferred (subscription_id, lane, key, sequence, id);
create index deferred_token_idx on postbus.deferred (token) where token is not null;
create index deferred_due_idx on postbus.deferred (subscription_id, due_at, lane) where not parked;
alter table postbus.deferred set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
comment on table postbus.deferred is
    'Deferred messages: copies of messages that a group''s cursor has passed and that are not settled. They wait for a retry, '
    'are parked behind another message of their key, are buffered for pops, or are in hand of a pop. Inserted by defer, '
    'fill_buffer and hand_over; deleted when they are settled.';
comment on column postbus.deferred.subscription_id is 'The group''s subscription.';
comment on column postbus.deferred.lane is 'The lane that the message came from.';
comment on column postbus.deferred.id is 'The message''s id.';
comment on column postbus.deferred.sequence is 'Its segment''s sequence: the order within a key.';
comment on column postbus.deferred.parked is 'The message waits behind another one of its key.';
comment on column postbus.deferred.due_at is 'When it may be tried; while a pop has it in hand (token), when that lease ends.';
comment on column postbus.deferred.attempts is 'How many attempts have begun.';
comment on column postbus.deferred.last_error is 'The error of the last attempt.';
comment on column postbus.deferred.published_at is 'When the message was published.';
comment on column postbus.deferred.key is 'The key by which messages are ordered; null: none.';
comment on column postbus.deferred.correlation_id is 'What the publisher gave to connect messages.';
comment on column postbus.deferred.content_type is 'The media type of the payload.';
comment on column postbus.deferred.headers is 'Names and values that the publisher gave.';
comment on column postbus.deferred.payload is 'The content.';
comment on column postbus.deferred.buffered is 'The message is in the pull buffer: it was read to be popped, and not because it failed.';
comment on column postbus.deferred.token is 'The pop that has the message in hand, until due_at; null: none.';
comment on column postbus.deferred.member is 'The member that popped it.';
comment on column postbus.deferred.kept_from is 'max_retention counts from then; null: from when the message was published.';
comment on column postbus.deferred.stretch is
    'The stretch in which the message was put off; null: not known. Below 0: the stretch in which the subscription stood when '
    'it was given the message, which does not tell of the message.';
comment on column postbus.deferred.suspected is 'The message was in hand with others when its process ended: it is tried alone before it is charged.';
comment on column postbus.deferred.outlasted is 'How often the suspect took longer than the time for which it was tried alone.';
comment on column postbus.deferred.alone is
    'A worker has it in hand: whether it has no other message in hand. Null: it is not in hand, or a pop took it with others.';

create table postbus.sign_of_life (
    subscription_id bigint not null,
    at              timestamptz not null
);
create index sign_of_life_idx on postbus.sign_of_life (subscription_id);
comment on table postbus.sign_of_life is
    'Signs that a group lives that pulls. Inserted by settlements, whose transactions may stay open for long and must not '
    'lock the group''s row; detect_dead moves them to subscription.seen_at.';
comment on column postbus.sign_of_life.subscription_id is 'The group''s subscription.';
comment on column postbus.sign_of_life.at is 'When it settled something.';

create table postbus.group_tally (
    subscription_id bigint not null,
    at              timestamptz not null,
    handled         bigint not null,
    failed          bigint not null
);
create index group_tally_at on postbus.group_tally (subscription_id, at);
comment on table postbus.group_tally is
    'How many calls for messages of a group ended well, and how many failed, in the last minutes. Only inserted into, so that '
    'settlements do not wait for one another; the sweep adds up the rows of a minute.';
comment on column postbus.group_tally.subscription_id is 'The group''s subscription.';
comment on column postbus.group_tally.at is 'When the calls ended.';
comment on column postbus.group_tally.handled is 'How many ended well.';
comment on column postbus.group_tally.failed is 'How many failed.';

create table postbus.group_event (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    name       text not null,
    topic      text not null,
    group_name text not null,
    fields     jsonb not null
);
comment on table postbus.group_event is
    'What happened to groups and is to be logged. Inserted by the functions that notice it; take_group_events deletes each '
    'row and gives it to the one process that logs it.';
comment on column postbus.group_event.id is 'The order of the events.';
comment on column postbus.group_event.at is 'When it happened.';
comment on column postbus.group_event.name is 'The log event, such as group.dead.';
comment on column postbus.group_event.topic is 'The topic.';
comment on column postbus.group_event.group_name is 'The group.';
comment on column postbus.group_event.fields is 'The fields of the log event.';

create table postbus.loss (
    subscription_id bigint not null,
    at              timestamptz not null default clock_timestamp(),
    reason          text not null,
    messages        bigint not null
);
create index loss_idx on postbus.loss (subscription_id);
comment on table postbus.loss is 'Messages that were removed before a group had them. Written by the sweep.';
comment on column postbus.loss.subscription_id is 'The group''s subscription.';
comment on column postbus.loss.at is 'When they were removed.';
comment on column postbus.loss.reason is 'Why.';
comment on column postbus.loss.messages is 'How many.';

create table postbus.health_limit (
    topic           text not null default '',
    group_name      text not null default '',
    failed_share    double precision,
    lag             double precision,
    lag_seconds     double precision,
    stopped_seconds double precision,
    primary key (topic, group_name)
);
comment on table postbus.health_limit is
    'From when on groups count as being in trouble. Written by set_health_limits. A value that is null follows from the less '
    'specific rows, and then from the defaults: see health_limits.';
comment on column postbus.health_limit.topic is 'The topic; '''' stands for all.';
comment on column postbus.health_limit.group_name is 'The group; '''' stands for all.';
comment on column postbus.health_limit.failed_share is 'The share of calls that may fail; infinity: any.';
comment on column postbus.health_limit.lag is 'How many messages may be before the group; infinity: any.';
comment on column postbus.health_limit.lag_seconds is 'How old the oldest of these may be; infinity: any age.';
comment on column postbus.health_limit.stopped_seconds is 'How long the group may be stopped; infinity: for ever.';

-- What became of messages

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
    error           text,
    stretch         bigint,
    txid            xid8,
    deviates        boolean
) partition by list (storage_id);
comment on table postbus.receipt is
    'Who settled which message, and when. Two kinds of rows: rows of the cursor ledger, moved here when the sweep folds it '
    '(number is not null); and one row for each message that was settled by itself (id is not null). Kept in partitions '
    'beside those of the segments, and removed with them.';
comment on column postbus.receipt.storage_id is 'The log storage.';
comment on column postbus.receipt.epoch is 'The partition.';
comment on column postbus.receipt.subscription_id is 'The group''s subscription.';
comment on column postbus.receipt.lane is 'The lane.';
comment on column postbus.receipt.at is 'When the cursor got there, or the message was settled.';
comment on column postbus.receipt.worker is 'The process or member that settled it.';
comment on column postbus.receipt.number is 'Of the ledger: cursor.number.';
comment on column postbus.receipt.cursor is 'Of the ledger: how far the group had come.';
comment on column postbus.receipt.moved is 'Of the ledger: why the cursor was set: see cursor.moved.';
comment on column postbus.receipt.id is 'Of a message: its id.';
comment on column postbus.receipt.outcome is 'Of a message: what became of it, such as COMPLETED or DEAD.';
comment on column postbus.receipt.attempts is 'Of a message: how many attempts it had.';
comment on column postbus.receipt.error is 'Of a message: its last error.';
comment on column postbus.receipt.stretch is 'Of a message: see deferred.stretch.';
comment on column postbus.receipt.txid is 'Of a message: the transaction that settled it.';
comment on column postbus.receipt.deviates is 'The row says of its message what the stretch does not say.';

create table postbus.receipt_partition (
    subscription_id bigint not null,
    epoch           integer not null,
    storage_id      integer not null,
    primary key (subscription_id, epoch)
);
comment on table postbus.receipt_partition is
    'In which partitions the ledger of a subscription has receipts, so that nobody has to look into all of them. Written when '
    'the ledger is folded.';
comment on column postbus.receipt_partition.subscription_id is 'The group''s subscription.';
comment on column postbus.receipt_partition.epoch is 'The partition.';
comment on column postbus.receipt_partition.storage_id is 'The log storage.';

create table postbus.stretch (
    subscription_id bigint not null,
    lane            integer not null,
    number          bigint not null,
    topic_id        bigint not null,
    group_id        bigint not null,
    group_name      text not null,
    txid            xid8 not null default pg_current_xact_id(),
    began           postbus.log_cursor not null,
    reached         postbus.log_cursor,
    died            postbus.log_position,
    primary key (subscription_id, lane, number)
);
create index stretch_topic_idx on postbus.stretch (topic_id, lane);
comment on table postbus.stretch is
    'What a subscription has worked through in a lane, from where it was set to where it was set elsewhere, or ended. Written '
    'at such events only; rows outlive the subscription.';
comment on column postbus.stretch.subscription_id is 'The subscription.';
comment on column postbus.stretch.lane is 'The lane.';
comment on column postbus.stretch.number is 'The row of the cursor ledger with which the stretch began.';
comment on column postbus.stretch.topic_id is 'The topic.';
comment on column postbus.stretch.group_id is 'The group''s own subscription, if another one reads its history.';
comment on column postbus.stretch.group_name is 'The group.';
comment on column postbus.stretch.txid is 'The transaction that began the stretch.';
comment on column postbus.stretch.began is 'Where the stretch begins.';
comment on column postbus.stretch.reached is 'Where it ends; null while the subscription stands in it: then its cursor tells.';
comment on column postbus.stretch.died is 'The end of the log when the group died or left; null while it lives.';

create table postbus.joining (
    id       bigint generated always as identity primary key,
    topic_id bigint not null,
    lane     integer not null,
    at       timestamptz not null default clock_timestamp(),
    sequence bigint not null,
    snapshot pg_snapshot not null,
    cursors  postbus.log_cursor[] not null,
    owners   text[] not null
);
create index joining_topic_idx on postbus.joining (topic_id, lane);
comment on table postbus.joining is
    'A moment at which retained messages came to be before a group: it joined late, came back from the dead, was set back, or '
    'its history went on. What was completed in the lane at that moment stays completed: what the snapshot shows, every live '
    'group was past, and some group had settled. Written at such events.';
comment on column postbus.joining.id is 'The moment.';
comment on column postbus.joining.topic_id is 'The topic.';
comment on column postbus.joining.lane is 'The lane.';
comment on column postbus.joining.at is 'When it was.';
comment on column postbus.joining.sequence is 'The last sequence that had been handed out.';
comment on column postbus.joining.snapshot is 'What was visible.';
comment on column postbus.joining.cursors is 'Where the live groups stood, the last of them.';
comment on column postbus.joining.owners is
    'Of each cursor: its group, if the group may have settled more before than it is past now; null otherwise.';

create type postbus.segment_ref as (
    sequence     bigint,
    lane         integer,
    txid         xid8,
    count        integer,
    published_at timestamptz
);
comment on type postbus.segment_ref is 'A segment whose messages are asked for: see delivery_statuses.';
comment on column postbus.segment_ref.sequence is 'The segment''s sequence.';
comment on column postbus.segment_ref.lane is 'The lane.';
comment on column postbus.segment_ref.txid is 'The publishing transaction.';
comment on column postbus.segment_ref.count is 'How many messages it has.';
comment on column postbus.segment_ref.published_at is 'When they were published.';

create type postbus.message_fact as (
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
comment on type postbus.message_fact is 'What is known of a single message beside the stretches: see message_facts.';
comment on column postbus.message_fact.id is 'The message''s id.';
comment on column postbus.message_fact.subscription_id is 'The group''s subscription.';
comment on column postbus.message_fact.group_name is 'The group.';
comment on column postbus.message_fact.stretch is 'The stretch: see deferred.stretch.';
comment on column postbus.message_fact.kind is 'What is known, such as RETRYING, DEAD or AHEAD.';
comment on column postbus.message_fact.txid is 'The transaction that settled the message.';
comment on column postbus.message_fact.at is 'When that was.';
comment on column postbus.message_fact.worker is 'Who settled it.';
comment on column postbus.message_fact.attempts is 'How many attempts it had.';
comment on column postbus.message_fact.error is 'Its last error.';

create type postbus.delivery_status as (
    sequence        bigint,
    first_index     integer,
    last_index      integer,
    group_name      text,
    subscription_id bigint,
    status          text,
    required        boolean,
    was_wanted      boolean,
    is_completed    boolean,
    is_before       boolean,
    waits           boolean
);
comment on type postbus.delivery_status is 'What became of messages of one segment at one group: see delivery_statuses.';
comment on column postbus.delivery_status.sequence is 'The segment''s sequence.';
comment on column postbus.delivery_status.first_index is 'The first of the messages ...';
comment on column postbus.delivery_status.last_index is '... and the last: all of them share the rest of the row.';
comment on column postbus.delivery_status.group_name is 'The group.';
comment on column postbus.delivery_status.subscription_id is 'Its last subscription.';
comment on column postbus.delivery_status.status is
    'PENDING: not read yet, or just being handled. RETRYING: failed, to be tried again. WAITING: behind a message of its key '
    'that failed. COMPLETED: done for good, whatever becomes of the group or its position. DEAD: given up; it is, or was, a '
    'dead letter of the group. ABANDONED: it was waiting when the group ended. SKIPPED: the group began later, or was set '
    'past it.';
comment on column postbus.delivery_status.required is
    'The group is required for the message: it has completed it; or the message is not completed, and the group has given it '
    'up, or lives and has it before it.';
comment on column postbus.delivery_status.was_wanted is 'The group is required for it, or was at some time.';
comment on column postbus.delivery_status.is_completed is
    'The same for all groups: some group has completed the message, none has given it up, and none that lives has it before '
    'it; or so it was at a joining. Then no group that had it before it afterwards is required for it.';
comment on column postbus.delivery_status.is_before is 'The group has it before it, though it may have completed it long ago.';
comment on column postbus.delivery_status.waits is 'It waits to be tried or popped, or a pop has it in hand.';

-- History

create table postbus.catch_up (
    subscription_id bigint primary key,
    reason          text not null,
    status          text not null default 'IN_PROGRESS',
    total           bigint not null,
    skipped         bigint not null default 0,
    started_at      timestamptz not null default clock_timestamp(),
    ended_at        timestamptz,
    processed       bigint,
    allowed_rate    double precision,
    p95             interval
);
comment on table postbus.catch_up is
    'History that a group works through beside what is published now: by a subscription of its own, which ends where the '
    'group began, or where it came back from the dead. Inserted with that subscription, changed by its process and the sweep.';
comment on column postbus.catch_up.subscription_id is 'The subscription that reads the history; subscription.catch_up_of is the group''s own.';
comment on column postbus.catch_up.reason is 'Why there is history to read.';
comment on column postbus.catch_up.status is 'IN_PROGRESS, or how it ended.';
comment on column postbus.catch_up.total is 'How many messages there were to work through.';
comment on column postbus.catch_up.skipped is 'How many older ones were skipped, beyond max_messages.';
comment on column postbus.catch_up.started_at is 'When it began.';
comment on column postbus.catch_up.ended_at is 'When it ended.';
comment on column postbus.catch_up.processed is 'How many messages were worked through, once it has ended.';
comment on column postbus.catch_up.allowed_rate is 'How many messages per second its process allowed itself, as it said last.';
comment on column postbus.catch_up.p95 is 'How long the process''s own statements took, as it said last.';

-- Pulling and scopes

create type postbus.popped as (
    topic           text,
    token           uuid,
    ends_at         timestamptz,
    lease_length    interval,
    ids             bigint[],
    published_ats   timestamptz[],
    attempts        integer[],
    priorities      smallint[],
    keys            text[],
    correlation_ids text[],
    content_types   text[],
    headers         text[],
    payloads        bytea[],
    more            boolean,
    next_due        interval,
    next_scan_floor text
);
comment on type postbus.popped is 'A row of pop: one for each lease, and a last one that tells how to go on.';
comment on column postbus.popped.topic is 'The topic.';
comment on column postbus.popped.token is 'Proves the lease; null: the messages are settled already.';
comment on column postbus.popped.ends_at is 'When the lease ends.';
comment on column postbus.popped.lease_length is 'How long it is.';
comment on column postbus.popped.ids is 'The id of each message.';
comment on column postbus.popped.published_ats is 'When each was published.';
comment on column postbus.popped.attempts is 'How many attempts of each have begun.';
comment on column postbus.popped.priorities is 'The priority of each.';
comment on column postbus.popped.keys is 'The key of each.';
comment on column postbus.popped.correlation_ids is 'The correlation id of each.';
comment on column postbus.popped.content_types is 'The media type of each payload.';
comment on column postbus.popped.headers is 'The headers of each, as JSON.';
comment on column postbus.popped.payloads is 'The payloads.';
comment on column postbus.popped.more is 'Last row: asking again at once is worth it.';
comment on column postbus.popped.next_due is 'Last row: how long it is until something is expected.';
comment on column postbus.popped.next_scan_floor is 'Last row: the scan floor for the next pop of the same.';

create type postbus.claimed as (
    token           uuid,
    ends_at         timestamptz,
    lease_length    interval,
    next_scan_floor text,
    more            boolean,
    ordered         boolean,
    next_due        interval,
    moved           boolean,
    ids             bigint[],
    published_ats   timestamptz[],
    attempts        integer[],
    priorities      smallint[],
    keys            text[],
    correlation_ids text[],
    content_types   text[],
    headers         text[],
    payloads        bytea[]
);
comment on type postbus.claimed is 'What a claim returns: see claim_as_of.';
comment on column postbus.claimed.token is 'Proves the lease; null: there was nothing to do.';
comment on column postbus.claimed.ends_at is 'When the lease ends.';
comment on column postbus.claimed.lease_length is 'How long it is.';
comment on column postbus.claimed.next_scan_floor is 'The scan floor for the next claim.';
comment on column postbus.claimed.more is 'Asking again at once is worth it.';
comment on column postbus.claimed.ordered is 'The topic is ordered.';
comment on column postbus.claimed.next_due is 'If nothing was found: how long it is until something is expected.';
comment on column postbus.claimed.moved is 'The queue became PUB_SUB, and what is left in it is claimed.';
comment on column postbus.claimed.ids is 'The id of each message.';
comment on column postbus.claimed.published_ats is 'When each was published.';
comment on column postbus.claimed.attempts is 'How many attempts of each have begun.';
comment on column postbus.claimed.priorities is 'The priority of each.';
comment on column postbus.claimed.keys is 'The key of each.';
comment on column postbus.claimed.correlation_ids is 'The correlation id of each.';
comment on column postbus.claimed.content_types is 'The media type of each payload.';
comment on column postbus.claimed.headers is 'The headers of each, as JSON.';
comment on column postbus.claimed.payloads is 'The payloads.';

create type postbus.claimed_suspects as (
    token           uuid,
    ends_at         timestamptz,
    lease_length    interval,
    ordered         boolean,
    ids             bigint[],
    published_ats   timestamptz[],
    attempts        integer[],
    priorities      smallint[],
    keys            text[],
    correlation_ids text[],
    content_types   text[],
    headers         text[],
    payloads        bytea[],
    outlasted       integer
);
comment on type postbus.claimed_suspects is 'What a claim of suspects returns: see claim_suspects_as_of.';
comment on column postbus.claimed_suspects.token is 'Proves the lease; null: there was nothing to do.';
comment on column postbus.claimed_suspects.ends_at is 'When the lease ends.';
comment on column postbus.claimed_suspects.lease_length is 'How long it is.';
comment on column postbus.claimed_suspects.ordered is 'The topic is ordered.';
comment on column postbus.claimed_suspects.ids is 'The id of each message.';
comment on column postbus.claimed_suspects.published_ats is 'When each was published.';
comment on column postbus.claimed_suspects.attempts is 'How many attempts of each have begun.';
comment on column postbus.claimed_suspects.priorities is 'The priority of each.';
comment on column postbus.claimed_suspects.keys is 'The key of each.';
comment on column postbus.claimed_suspects.correlation_ids is 'The correlation id of each.';
comment on column postbus.claimed_suspects.content_types is 'The media type of each payload.';
comment on column postbus.claimed_suspects.headers is 'The headers of each, as JSON.';
comment on column postbus.claimed_suspects.payloads is 'The payloads.';
comment on column postbus.claimed_suspects.outlasted is 'How often the suspect took longer than the time for which it was tried alone.';

create table postbus.scope (
    id          bigint generated always as identity primary key,
    group_name  text not null,
    topic       text,
    key         text,
    namespace   text,
    task        text,
    pattern     text,
    mode        text not null,
    start_at    timestamptz,
    recorded_at timestamptz not null default clock_timestamp(),
    snapshot    pg_snapshot not null,
    on_failure  text not null default 'block',
    catch_up    jsonb not null default '{}',
    start_id    bigint,
    check (num_nonnulls(topic, namespace, task, pattern) = 1 and (key is null or topic is not null))
);
create unique index scope_idx on postbus.scope
    (group_name, coalesce(topic, ''), coalesce(namespace, ''), coalesce(task, ''), coalesce(pattern, ''), (key is null), coalesce(key, ''));
comment on table postbus.scope is
    'What a group has subscribed to, and where it starts in topics that it has no subscription for yet. Written by '
    'subscribe_scope and forget_scope. A group starts with messages that were published at start_at or later, and, unless '
    'that is later than recorded_at, with all that the snapshot does not show: what was committed after the record.';
comment on column postbus.scope.id is 'The scope.';
comment on column postbus.scope.group_name is 'The group.';
comment on column postbus.scope.topic is 'A topic ...';
comment on column postbus.scope.key is '... or one key of that topic ...';
comment on column postbus.scope.namespace is '... or all topics of a namespace ...';
comment on column postbus.scope.task is '... or of a task ...';
comment on column postbus.scope.pattern is '... or with names that fit a pattern.';
comment on column postbus.scope.mode is 'Where the group starts: new, all, timestamp or message.';
comment on column postbus.scope.start_at is 'The time from which it starts; null: with all that is retained.';
comment on column postbus.scope.recorded_at is 'When the scope was recorded.';
comment on column postbus.scope.snapshot is 'What was visible then.';
comment on column postbus.scope.on_failure is 'subscription.on_failure of the subscriptions that it makes.';
comment on column postbus.scope.catch_up is 'subscription.catch_up of the subscriptions that it makes.';
comment on column postbus.scope.start_id is 'Mode message: the id from which the group starts.';

create table postbus.scope_pop (
    scope_id bigint not null,
    token    uuid not null
);
comment on table postbus.scope_pop is
    'Pops from all topics of a scope. While such a pop has messages in hand, its group lives in each of the topics. Inserted '
    'by pop_scope, deleted by the sweep.';
comment on column postbus.scope_pop.scope_id is 'The scope.';
comment on column postbus.scope_pop.token is 'The pop: deferred.token of its messages.';

-- Processes and sweeping

create table postbus.worker (
    name       text primary key,
    host       text not null,
    pid        integer not null,
    topics     text[] not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp(),
    secret     uuid
);
comment on table postbus.worker is 'Processes that consume. Written by heartbeat and sign_off.';
comment on column postbus.worker.name is 'The process.';
comment on column postbus.worker.host is 'Its host.';
comment on column postbus.worker.pid is 'Its process id there.';
comment on column postbus.worker.topics is 'The topics that it consumes.';
comment on column postbus.worker.started_at is 'When it started.';
comment on column postbus.worker.seen_at is 'Its last heartbeat.';
comment on column postbus.worker.secret is 'A random number that proves that a call comes from this process.';

create table postbus.sweeper (
    name       text primary key,
    host       text not null,
    pid        integer not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp(),
    secret     uuid
);
comment on table postbus.sweeper is
    'Processes that sweep and consume nothing. Those that consume stand in worker. Written by note_sweeper and '
    'forget_sweeper.';
comment on column postbus.sweeper.name is 'The process.';
comment on column postbus.sweeper.host is 'Its host.';
comment on column postbus.sweeper.pid is 'Its process id there.';
comment on column postbus.sweeper.started_at is 'When it started.';
comment on column postbus.sweeper.seen_at is 'When it was last heard of.';
comment on column postbus.sweeper.secret is 'A random number that proves that a call comes from this process.';

create table postbus.sink_away (
    topic      text not null,
    group_name text not null,
    process    text not null,
    sink       text not null,
    error      text not null,
    since      timestamptz not null default clock_timestamp(),
    told_at    timestamptz not null default clock_timestamp(),
    secret     uuid,
    primary key (topic, group_name, process)
);
comment on table postbus.sink_away is 'Sinks that relays cannot reach. Written by note_sink_away and forget_sink_away.';
comment on column postbus.sink_away.topic is 'The topic that is relayed.';
comment on column postbus.sink_away.group_name is 'The relay''s group; '''' for a QUEUE.';
comment on column postbus.sink_away.process is 'The relaying process.';
comment on column postbus.sink_away.sink is 'The sink.';
comment on column postbus.sink_away.error is 'The last error.';
comment on column postbus.sink_away.since is 'Since when the sink is away.';
comment on column postbus.sink_away.told_at is 'When the process last said so.';
comment on column postbus.sink_away.secret is 'A random number that proves that a call comes from this process.';

create table postbus.sweep_setting (
    only_row               boolean primary key default true check (only_row),
    interval               interval not null default '5 minutes',
    batch_size             integer not null default 10000,
    detection_interval     interval not null default '1 minute',
    subscription_retention interval not null default '30 days',
    audit_retention        interval not null default '90 days'
);
insert into postbus.sweep_setting default values;
comment on table postbus.sweep_setting is 'How sweeping is done: one row. Written by set_sweeping.';
comment on column postbus.sweep_setting.only_row is 'Always true, so that there is only one row.';
comment on column postbus.sweep_setting.interval is 'How often is looked for what can be removed ...';
comment on column postbus.sweep_setting.batch_size is '... this many rows at a time.';
comment on column postbus.sweep_setting.detection_interval is 'How often is looked for groups without heartbeats.';
comment on column postbus.sweep_setting.subscription_retention is 'How long DEAD and CANCELLED subscriptions are kept.';
comment on column postbus.sweep_setting.audit_retention is 'How long entries of the audit log are kept.';

create table postbus.sweep_job (
    job           text not null,
    storage_id    integer not null default 0,
    runs          bigint not null default 0,
    started_at    timestamptz,
    took          interval,
    removed       bigint not null default 0,
    removed_total bigint not null default 0,
    failed_at     timestamptz,
    error         text,
    primary key (job, storage_id)
);
alter table postbus.sweep_job set (fillfactor = 50);
comment on table postbus.sweep_job is 'What each job of sweeping has done last. Written by the jobs.';
comment on column postbus.sweep_job.job is 'The job.';
comment on column postbus.sweep_job.storage_id is 'The log storage, of jobs that go through the log; 0 otherwise.';
comment on column postbus.sweep_job.runs is 'How many runs were noted: see note_run.';
comment on column postbus.sweep_job.started_at is 'When the last of these began.';
comment on column postbus.sweep_job.took is 'How long it took.';
comment on column postbus.sweep_job.removed is 'What it removed: see the view sweep_jobs.';
comment on column postbus.sweep_job.removed_total is 'What all noted runs removed.';
comment on column postbus.sweep_job.failed_at is 'When the job last failed.';
comment on column postbus.sweep_job.error is 'That error.';

create table postbus.sweep_sample (
    at        timestamptz primary key,
    published bigint not null,
    swept     bigint not null,
    backlog   bigint not null
);
comment on table postbus.sweep_sample is 'How much was published and swept at some moments. Written by sweep, which keeps twenty rows.';
comment on column postbus.sweep_sample.at is 'The moment.';
comment on column postbus.sweep_sample.published is 'How many messages were published to all PUB_SUB topics so far.';
comment on column postbus.sweep_sample.swept is 'How many of these were removed.';
comment on column postbus.sweep_sample.backlog is 'How many should have been removed and were not, of queues too.';

-- Consumers and imports

create table postbus.inbox (
    consumer   text not null,
    message_id text not null,
    done_at    timestamptz not null,
    expires_at timestamptz not null,
    primary key (consumer, message_id)
);
create index inbox_expires_at_idx on postbus.inbox (expires_at);
comment on table postbus.inbox is
    'Messages that a consumer is done with: what makes its effects happen once, although deliveries repeat. Inserted in the '
    'transaction of the effect, deleted by the sweep.';
comment on column postbus.inbox.consumer is 'The consumer.';
comment on column postbus.inbox.message_id is 'The message''s event id.';
comment on column postbus.inbox.done_at is 'When the consumer was done.';
comment on column postbus.inbox.expires_at is 'When the record may be forgotten.';

create table postbus.moving (
    topic_id  bigint primary key,
    since     timestamptz not null default clock_timestamp(),
    ordered   boolean not null,
    first_id  bigint not null,
    heir      bigint,
    hand_over boolean not null,
    users     text[],
    ended_at  timestamptz
);
comment on table postbus.moving is
    'Queues that became PUB_SUB: consumers work off what is left in the queue, and the groups that were named wait for that. '
    'Inserted by move_topic, changed by continue_moves.';
comment on column postbus.moving.topic_id is 'The topic.';
comment on column postbus.moving.since is 'When it became PUB_SUB.';
comment on column postbus.moving.ordered is 'Whether the queue was ordered.';
comment on column postbus.moving.first_id is 'Ids of the log begin here; lower ones are of the queue.';
comment on column postbus.moving.heir is 'The subscription that gets what no consumer of the queue takes.';
comment on column postbus.moving.hand_over is 'The heir gets it at once, without waiting for consumers of the queue.';
comment on column postbus.moving.users is 'Open transactions that may have published to the queue; null: not looked for yet.';
comment on column postbus.moving.ended_at is 'When the groups began.';

create table postbus.imported (
    source      text not null,
    source_id   text not null,
    message_id  bigint,
    imported_at timestamptz not null default clock_timestamp(),
    primary key (source, source_id)
);
comment on table postbus.imported is
    'Messages of other outboxes that were imported, so that no import does it twice. Written by import_messages and '
    'import_seen.';
comment on column postbus.imported.source is 'The outbox''s table.';
comment on column postbus.imported.source_id is 'The message''s id there.';
comment on column postbus.imported.message_id is 'The message''s id here; null: no group needed it any more.';
comment on column postbus.imported.imported_at is 'When it was imported.';

create table postbus.imported_group (
    source      text not null,
    topic_id    bigint not null,
    group_name  text not null,
    imported_at timestamptz not null default clock_timestamp(),
    primary key (source, topic_id, group_name)
);
comment on table postbus.imported_group is 'Groups of other outboxes that were imported. Written by import_group.';
comment on column postbus.imported_group.source is 'The outbox''s table.';
comment on column postbus.imported_group.topic_id is 'The topic.';
comment on column postbus.imported_group.group_name is 'The group.';
comment on column postbus.imported_group.imported_at is 'When it was imported.';

-- Access

create table postbus.role_granted (
    role text primary key,
    oid  oid not null
);
comment on table postbus.role_granted is
    'The roles that `postbus migrate` has given their rights. Another role needs them again, even one of the same name. '
    'Written by the grants.';
comment on column postbus.role_granted.role is 'producer, consumer, observer, operator or admin.';
comment on column postbus.role_granted.oid is 'The role.';

create table postbus.topic_grant (
    role       text not null,
    role_oid   oid not null,
    pattern    text not null,
    action     text not null,
    granted_by text not null,
    granted_at timestamptz not null default clock_timestamp(),
    primary key (role, pattern, action)
);
comment on table postbus.topic_grant is 'What roles may do with some topics only. Written by grant_topic and revoke_topic.';
comment on column postbus.topic_grant.role is 'The role''s name.';
comment on column postbus.topic_grant.role_oid is 'The role: another one of that name has no grants.';
comment on column postbus.topic_grant.pattern is 'The names of topics; * stands for any text.';
comment on column postbus.topic_grant.action is 'publish, consume or read.';
comment on column postbus.topic_grant.granted_by is 'The login that granted it.';
comment on column postbus.topic_grant.granted_at is 'When it was granted.';

create table postbus.token (
    id           text primary key,
    hash         bytea not null,
    name         text not null,
    roles        text[] not null,
    topics       text[] not null,
    created_at   timestamptz not null default clock_timestamp(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    groups       text[] not null default '{*}',
    payloads     boolean not null default true,
    created_by   text,
    last_used_at timestamptz
);
comment on table postbus.token is 'Callers of the HTTP server. Written by create_token and revoke_token.';
comment on column postbus.token.id is 'The public part of the token.';
comment on column postbus.token.hash is 'A hash of the secret part: nobody can read here what a caller has to send.';
comment on column postbus.token.name is 'Whose token it is, for people.';
comment on column postbus.token.roles is 'The roles that it has.';
comment on column postbus.token.topics is 'Patterns of the topics that it is limited to; * stands for any text.';
comment on column postbus.token.created_at is 'When it was created.';
comment on column postbus.token.expires_at is 'When it expires; null: never.';
comment on column postbus.token.revoked_at is 'When it was revoked; null: it is valid.';
comment on column postbus.token.groups is 'Patterns of the groups that it is limited to.';
comment on column postbus.token.payloads is 'Whether it is shown what publishers and handlers have written.';
comment on column postbus.token.created_by is 'The login that created it.';
comment on column postbus.token.last_used_at is 'When it was last used. Written seldom: see note_token_uses.';

create table postbus.webhook (
    name        text primary key,
    topic       text not null,
    group_name  text,
    url         text not null,
    secret      text not null,
    concurrency integer not null,
    timeout     interval not null,
    enabled     boolean not null,
    created_at  timestamptz not null default clock_timestamp(),
    changed_at  timestamptz not null default clock_timestamp()
);
create unique index webhook_consumer_idx on postbus.webhook (topic, coalesce(group_name, ''));
comment on table postbus.webhook is 'Where messages are pushed by HTTP. Written by create_webhook and set_webhook.';
comment on column postbus.webhook.name is 'The webhook.';
comment on column postbus.webhook.topic is 'The topic.';
comment on column postbus.webhook.group_name is 'The group; null: the consumer of a queue.';
comment on column postbus.webhook.url is 'Where messages are sent to.';
comment on column postbus.webhook.secret is 'Signs what is sent. It is kept as it is, and no view shows it.';
comment on column postbus.webhook.concurrency is 'How many requests run at once.';
comment on column postbus.webhook.timeout is 'How long a request may take.';
comment on column postbus.webhook.enabled is 'Whether messages are sent.';
comment on column postbus.webhook.created_at is 'When it was created.';
comment on column postbus.webhook.changed_at is 'When it was last changed.';

create table postbus.audit_entry (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    login      text not null,
    role       text,
    actor      text,
    program    text,
    address    inet,
    action     text not null,
    topic      text,
    group_name text,
    target     text,
    affected   bigint,
    given      jsonb,
    before     jsonb,
    after      jsonb
);
create index audit_entry_at_idx on postbus.audit_entry (at);
comment on table postbus.audit_entry is
    'The audit log: what was done by whom. Only note_action inserts, only the sweep deletes, and no role may touch it. Ids '
    'have gaps where a transaction was rolled back.';
comment on column postbus.audit_entry.id is 'The order of the entries.';
comment on column postbus.audit_entry.at is 'When it was done.';
comment on column postbus.audit_entry.login is 'The user who logged in to the database.';
comment on column postbus.audit_entry.role is 'The role that the session had taken by SET ROLE.';
comment on column postbus.audit_entry.actor is 'Who acts, as the caller says: who uses a server or a command line that has the login.';
comment on column postbus.audit_entry.program is 'application_name, as the caller says.';
comment on column postbus.audit_entry.address is 'The caller''s address; null over a Unix socket.';
comment on column postbus.audit_entry.action is 'What was done, such as topic.create.';
comment on column postbus.audit_entry.topic is 'The topic.';
comment on column postbus.audit_entry.group_name is 'The group.';
comment on column postbus.audit_entry.target is 'What else was acted on: a token, a webhook, a scope, ...';
comment on column postbus.audit_entry.affected is 'How many messages or rows.';
comment on column postbus.audit_entry.given is 'How the caller chose them.';
comment on column postbus.audit_entry.before is 'What was changed, as it was.';
comment on column postbus.audit_entry.after is 'What was changed, as it is now.';

-- Compression and the server's identity, which depend on the server

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

insert into postbus.cluster (table_oid) values ('postbus.cluster'::regclass);
do $$
begin
    update postbus.cluster set identifier = (select system_identifier from pg_control_system());
exception when insufficient_privilege then
    null;
end $$;

-- The schema of Postbus as it is now, for reading: `make schema` writes it. `postbus migrate` makes the schema from
-- migrations/ and code/, and does not run this file.

-- Migrations that were applied to this database, one row each. Written by `postbus migrate`.
create table postbus.migration (
    -- The migration's number.
    number integer not null,
    -- The name of its file, without the number.
    name text not null,
    -- Clients that do not know this migration refuse the database.
    breaking boolean not null,
    -- When it was applied.
    applied_at timestamp with time zone default clock_timestamp() not null,
    primary key (number)
);

-- The state of the functions and views: one row, replaced by each `postbus migrate` that changes them.
create table postbus.installed (
    -- Always true, so that there is only one row.
    only_row boolean default true not null,
    -- The version of Postbus that installed the functions.
    code_version text not null,
    -- A hash of all SQL files: clients compare it with their own.
    code_checksum text not null,
    -- When the functions were last replaced.
    installed_at timestamp with time zone default clock_timestamp() not null,
    primary key (only_row),
    check (only_row)
);

-- The server that this database belongs to: one row. Cursors hold transaction ids, which mean nothing on another
-- server. Written by the first migration and by rebase.
create table postbus.cluster (
    -- Always true, so that there is only one row.
    only_row boolean default true not null,
    -- The server's system identifier; null if the migrating user may not read it.
    identifier bigint,
    -- The oid of this table. A restored dump gives the table another one, so check_cluster notices the restore.
    table_oid oid not null,
    -- When the row was written.
    noted_at timestamp with time zone default clock_timestamp() not null,
    -- Identifies this database: part of every event id. It stays the same over failover, upgrade and restore; rebase
    -- gives a copy that runs beside the original another one.
    source uuid default gen_random_uuid() not null,
    primary key (only_row),
    check (only_row)
);

-- Topics with options of their own. Written by create_topic, set_topic and the like. The row '*' holds the options of
-- all topics that have no row: so publishing to a new name writes nothing that another transaction might wait for.
create table postbus.topic (
    -- postbus.topic_id(name): follows from the name, so that it is known without a row.
    id bigint not null,
    -- The name that messages are published to.
    name text not null,
    -- QUEUE: each message goes to one consumer. PUB_SUB: each message goes to every group.
    semantics text default 'QUEUE'::text not null,
    -- QUEUE: messages of one key are handled one after the other.
    ordered boolean default false not null,
    -- How long a claimed message or a lane is held until its consumer has to extend the lease.
    lease interval default '00:00:30'::interval not null,
    -- Attempts before a message becomes a dead letter.
    max_attempts integer default 25 not null,
    -- The delay before the second attempt.
    retry_initial interval default '00:00:01'::interval not null,
    -- Each further delay is this many times longer.
    retry_factor double precision default 2 not null,
    -- The longest delay.
    retry_max interval default '01:00:00'::interval not null,
    -- Each delay is changed at random by up to this share of it.
    retry_jitter double precision default 0.2 not null,
    -- How long messages are kept after they are settled. 0 for a QUEUE: deleted on ack.
    retention interval default '00:00:00'::interval not null,
    -- How long a deduplication key is remembered.
    dedup_window interval default '24:00:00'::interval not null,
    -- The largest payload.
    max_payload_bytes integer default 1048576 not null,
    -- Every commit that publishes wakes consumers by NOTIFY, even though such commits wait for one another.
    notify boolean default false not null,
    -- Since when the topic is paused: nothing is claimed; null: it is not paused.
    paused_at timestamp with time zone,
    -- When the row was written.
    created_at timestamp with time zone default clock_timestamp() not null,
    -- PUB_SUB: REFERENCE_COUNTING keeps a receipt for each message and group, OFFSET_WATERMARK positions alone; null
    -- for a QUEUE.
    tracking text,
    -- PUB_SUB: into how many lanes keys are hashed.
    lanes integer default 8 not null,
    -- PUB_SUB: shared: segments stand in a log storage beside those of other topics. own: in one of the topic's own.
    storage text default 'shared'::text not null,
    -- PUB_SUB: the log storage of the topic's segments; null for a QUEUE.
    storage_id integer,
    -- PUB_SUB: how many messages of one call share a segment at most.
    segment_size integer default 1000 not null,
    -- PUB_SUB: how long messages are kept while no group is subscribed.
    zero_subscription_retention interval default '24:00:00'::interval not null,
    -- PUB_SUB: publishing is refused while no group is ACTIVE.
    block_writes_on_zero_subscriptions boolean default false not null,
    -- PUB_SUB: after this time messages are removed even if a group has not had them; table loss says how many.
    max_retention interval default '30 days'::interval not null,
    -- PUB_SUB: a group without progress for this long keeps no messages from being removed.
    zombie_time interval default '7 days'::interval not null,
    -- PUB_SUB: how often groups send heartbeats.
    heartbeat_interval interval default '00:01:00'::interval not null,
    -- PUB_SUB: a group without a heartbeat for this long is declared DEAD.
    heartbeat_timeout interval default '00:05:00'::interval not null,
    -- PUB_SUB: every message has a key, and the key names the lane; `lanes` is then how many slices the lanes are read
    -- in.
    named_lanes boolean default false not null,
    -- Groups can subscribe to all topics of a namespace.
    namespace text,
    -- Groups can subscribe to all topics of a task.
    task text,
    -- PUB_SUB: how long messages are kept for a group that became DEAD.
    dead_retention interval default '72:00:00'::interval not null,
    primary key (id),
    unique (name)
);
create index topic_namespace_idx on postbus.topic using btree (namespace) where (namespace is not null);
create index topic_task_idx on postbus.topic using btree (task) where (task is not null);

-- Names that were published to and have no row in topic. Written at the first publish to a name. Not unique on purpose:
-- concurrent publishers do not wait for one another.
create table postbus.topic_seen (
    -- postbus.topic_id(name).
    topic_id bigint not null,
    -- The name.
    name text not null
);
create index topic_seen_idx on postbus.topic_seen using btree (topic_id);

-- Ids of the messages of queues. A publish call takes 1024 at a time: taking single ids would be a tenth of its cost.
create sequence postbus.message_id increment by 1024 cache 1;

-- A message of a queue within a lease or a row of finished, which hold many messages each.
create type postbus.queue_message as (
    -- The message's id.
    id bigint,
    -- When it was published.
    published_at timestamp with time zone,
    -- How many attempts have begun.
    attempts integer,
    -- 0 is claimed first, then 1, and so on.
    priority smallint,
    -- The key by which messages are ordered; null: none.
    key text,
    -- What the publisher gave to connect messages.
    correlation_id text,
    -- The media type of the payload.
    content_type text,
    -- Names and values that the publisher gave.
    headers jsonb,
    -- The content.
    payload bytea
);

-- The scan floor of a claimer: below it no message is left. A claimer gets it as an opaque text and gives it to its
-- next claim. It was taken with a snapshot: the transactions below xmax had ended, except for those in `open`. What
-- that snapshot shows was claimed, up to (txid, id) of each priority (array index = priority + 1), or completely if
-- there is no such pair. So the next search looks above that, and at the transactions that were open. Without a floor
-- the search starts at the oldest id.
create type postbus.scan_floor as (
    -- The first transaction id that had not been assigned.
    xmax xid8,
    -- The transactions below xmax that were open.
    open xid8[],
    -- For each priority, the transaction of the last message that was claimed.
    txids xid8[],
    -- For each priority, the id of that message.
    ids bigint[],
    -- Delayed messages that were due by then, and visible, are promoted.
    delays_due_at timestamp with time zone,
    -- How much has been claimed with this floor: a new one is taken now and then.
    used integer
);

-- Messages of queues that may be claimed now. Inserted by publish and by promote_delayed; a claim deletes the row and
-- puts the message into a lease.
create table postbus.queued (
    -- The topic.
    topic_id bigint not null,
    -- The transaction that inserted the row. With it, claims step over nothing that old transactions keep alive: see
    -- type scan_floor.
    txid xid8 default pg_current_xact_id() not null,
    -- The message's id.
    id bigint default nextval('postbus.message_id'::regclass) not null,
    -- When the message was published.
    published_at timestamp with time zone default clock_timestamp() not null,
    -- How many attempts have begun.
    attempts integer default 0 not null,
    -- 0 is claimed first, then 1, and so on.
    priority smallint not null,
    -- The topic was ordered when the message was published, and the message has a key.
    ordered boolean default false not null,
    -- The message waits behind another one of its key, which is in hand.
    parked boolean default false not null,
    -- The key by which messages are ordered; null: none.
    key text,
    -- What the publisher gave to connect messages.
    correlation_id text,
    -- The media type of the payload.
    content_type text not null,
    -- Names and values that the publisher gave.
    headers jsonb,
    -- The content.
    payload bytea not null
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);
create index queued_claim_idx on postbus.queued using btree (topic_id, priority, txid, id) where (not parked);
create index queued_id_idx on postbus.queued using brin (id);
create index queued_key_idx on postbus.queued using btree (topic_id, key, id) where ordered;

-- Messages of queues that may be claimed later: scheduled ones, those that wait for their next attempt, and suspects.
-- Inserted by publish, retry and return_expired; promote_delayed moves rows to queued when they are due.
create table postbus.delayed (
    -- The topic.
    topic_id bigint not null,
    -- The transaction that inserted the row.
    txid xid8 default pg_current_xact_id() not null,
    -- The message's id.
    id bigint default nextval('postbus.message_id'::regclass) not null,
    -- When the message may be claimed.
    due_at timestamp with time zone not null,
    -- When the message was published.
    published_at timestamp with time zone default clock_timestamp() not null,
    -- How many attempts have begun.
    attempts integer default 0 not null,
    -- 0 is claimed first, then 1, and so on.
    priority smallint not null,
    -- The topic was ordered, and the message has a key.
    ordered boolean default false not null,
    -- The key by which messages are ordered; null: none.
    key text,
    -- What the publisher gave to connect messages.
    correlation_id text,
    -- The media type of the payload.
    content_type text not null,
    -- Names and values that the publisher gave.
    headers jsonb,
    -- The content.
    payload bytea not null,
    -- The error of the last attempt.
    last_error text,
    -- The message is a suspect: at most this many suspects are claimed together. Null: it is none.
    trial integer,
    -- How often the suspect took longer than the time for which it was tried alone.
    outlasted integer
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);
create index delayed_due_idx on postbus.delayed using btree (topic_id, due_at);
create index delayed_id_idx on postbus.delayed using brin (id);
create index delayed_trial_idx on postbus.delayed using btree (topic_id, due_at, id) where (trial is not null);
create index delayed_txid_idx on postbus.delayed using btree (topic_id, txid);

-- What one claim took from a queue, all of its messages in one row. Inserted by claim; changed by settlements; deleted
-- when all messages are settled, or by return_expired. The row is the fence: if it is gone, the claimer has lost the
-- lease.
create table postbus.lease (
    -- A random number that proves the lease.
    token uuid not null,
    -- The topic.
    topic_id bigint not null,
    -- The member that claimed the messages.
    member text not null,
    -- When the lease ends, unless it is extended.
    ends_at timestamp with time zone not null,
    -- The topic was ordered.
    ordered boolean not null,
    -- The ids of the messages that are not settled yet.
    open_ids bigint[] not null,
    -- All messages of the claim.
    messages postbus.queue_message[] not null,
    -- The process had no other message in hand; null: that is found out when the lease has ended.
    alone boolean,
    -- How often the suspect in it took longer than the time for which it was tried alone.
    outlasted integer,
    primary key (token)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0);
create index lease_ends_idx on postbus.lease using btree (ends_at);

-- Members that had several messages in hand when their leases ended, so that none of these is charged. Written by
-- return_expired. A table of its own: marking the other messages would wait for members that are just taking them.
create table postbus.crowded (
    -- The member's name.
    member text not null
);
create index crowded_member_idx on postbus.crowded using btree (member);

-- Keys of ordered queues of which a message is in hand. Inserted by claims, deleted when the key is passed on.
create table postbus.busy_key (
    -- The topic.
    topic_id bigint not null,
    -- The key.
    key text not null,
    -- The only message of the key that may be claimed.
    head_id bigint,
    primary key (topic_id, key)
);

-- Settled messages of queues that have a retention. Inserted by ack, deleted by the sweep.
create table postbus.finished (
    -- The topic.
    topic_id bigint not null,
    -- When the messages were settled.
    finished_at timestamp with time zone default clock_timestamp() not null,
    -- The member that settled them.
    member text not null,
    -- The messages that were settled together.
    messages postbus.queue_message[] not null
);
create index finished_idx on postbus.finished using btree (topic_id, finished_at);

-- Messages that were given up, of queues and of groups. Inserted when a settlement gives a message up; deleted by
-- redrive and purge_dead_letters.
create table postbus.dead_letter (
    -- The message's id.
    id bigint not null,
    -- The topic.
    topic_id bigint not null,
    -- When the message was given up.
    died_at timestamp with time zone default clock_timestamp() not null,
    -- Why it was given up.
    reason text not null,
    -- The error of its last attempt.
    last_error text,
    -- When it was published.
    published_at timestamp with time zone not null,
    -- How many attempts it had.
    attempts integer not null,
    -- The priority with which it was published.
    priority smallint not null,
    -- The key by which messages are ordered; null: none.
    key text,
    -- What the publisher gave to connect messages.
    correlation_id text,
    -- The media type of the payload.
    content_type text not null,
    -- Names and values that the publisher gave.
    headers jsonb,
    -- The content.
    payload bytea not null,
    -- The group's subscription; 0 for a queue.
    subscription_id bigint default 0 not null,
    -- The stretch in which the group read the message: see deferred.stretch.
    stretch bigint,
    primary key (id, subscription_id)
);
create index dead_letter_topic_idx on postbus.dead_letter using btree (topic_id, id);

-- Deduplication keys within their window. Inserted by publish, deleted by the sweep.
create table postbus.dedup (
    -- The topic.
    topic_id bigint not null,
    -- The key that the publisher gave.
    dedup_key text not null,
    -- The message that was published first with this key.
    message_id bigint not null,
    -- When the window ends.
    expires_at timestamp with time zone not null,
    primary key (topic_id, dedup_key)
);
create index dedup_expires_idx on postbus.dedup using btree (expires_at);

-- Numbers all segments of all log storages. Sequences do not belong to transactions, and cache 1 hands numbers out in
-- the order in which they are asked for: who asks later gets a higher one, at every isolation level.
create sequence postbus.segment_number increment by 1 cache 1;

-- Log storages: where segments are kept, shared by topics of about the same retention, or of one topic alone. Inserted
-- with the first topic that needs the storage. Each storage has a sequence log_epoch_<id>, whose last value is the
-- epoch of the partition that is written to. A sequence of a segment is that epoch and a number of segment_number:
-- epoch * 2^43 + number.
create table postbus.log_storage (
    -- 1 to 5 are the shared storages; own storages begin at 100.
    id integer not null,
    -- What is stored in it, for people.
    name text not null,
    -- The only topic of an own storage; null for a shared one.
    topic_id bigint,
    -- Shared: topics that keep messages up to this long are stored here; null: for longer, or own.
    retention interval,
    -- A partition is written to for about this long ...
    period interval not null,
    -- ... or until it has this size.
    partition_bytes bigint default (1 << 30) not null,
    primary key (id),
    unique (name),
    unique (topic_id)
);

-- The partitions of the log: tables segment_<storage>_<epoch> and receipt_<storage>_<epoch>. Inserted by add_partition,
-- changed and deleted by sweep_log.
create table postbus.log_partition (
    -- The log storage.
    storage_id integer not null,
    -- The number of the partition within its storage.
    epoch integer not null,
    -- When the partition was added.
    opened_at timestamp with time zone default clock_timestamp() not null,
    -- When the partition was closed: it gets no more segments; null while it is open.
    closed_at timestamp with time zone,
    -- All transactions that wrote to the closed partition have a lower id.
    closed_txid xid8,
    -- How many messages it has, counted behind the publishers.
    messages bigint default 0 not null,
    -- It is closed, and all of its topics have a row in partition_topic.
    listed boolean default false not null,
    -- The last segment number that was handed out before the partition was begun: all of its segments have higher ones.
    after_number bigint default 0 not null,
    primary key (storage_id, epoch)
);

-- What each topic has in a partition of the log. Counted by the sweep behind the publishers; complete when the
-- partition is listed. Deleted when the topic's segments are gone from the partition.
create table postbus.partition_topic (
    -- The log storage.
    storage_id integer not null,
    -- The partition.
    epoch integer not null,
    -- The topic.
    topic_id bigint not null,
    -- How many messages of the topic the partition has.
    messages bigint default 0 not null,
    -- No message of the topic in the partition was published earlier.
    first_at timestamp with time zone,
    -- Since when the messages are past their retention and a group still needs them.
    needed_since timestamp with time zone,
    -- That group's subscription.
    needed_by bigint,
    -- A lane in which it has some of the messages before it ...
    needed_lane integer,
    -- ... as long as this is the lane's last row in the cursor ledger.
    needed_number bigint,
    -- Up to this segment nothing of the topic is left, since its max_retention was over.
    thinned_to bigint,
    primary key (storage_id, epoch, topic_id)
) with (fillfactor=70);
create index partition_topic_needed_idx on postbus.partition_topic using btree (needed_by, epoch) where (needed_by is not null);
create index partition_topic_topic_idx on postbus.partition_topic using btree (topic_id, epoch);

-- What was in a partition at a time, one mark for each period of the storage, if the partition is written to for longer
-- than that. So a max_retention holds within such a partition. Written by sweep_log.
create table postbus.partition_mark (
    -- The log storage.
    storage_id integer not null,
    -- The partition.
    epoch integer not null,
    -- When the mark was made.
    at timestamp with time zone not null,
    -- All segments that were there have a sequence up to this one ...
    sequence bigint not null,
    -- ... and come from transactions below this id.
    txid xid8 not null,
    primary key (storage_id, epoch, at),
    foreign key (storage_id, epoch) references postbus.log_partition(storage_id, epoch) on delete cascade
);

-- A position in the log: all that is visible in the snapshot. Its parts are taken in this order: the last sequence
-- handed out, the snapshot, an own transaction id. So transactions above txid have all of their segments above that
-- sequence, and only few up to txid are not visible: those that were open, and those between the snapshot's xmax and
-- txid.
create type postbus.log_position as (
    -- The last sequence that was handed out.
    sequence bigint,
    -- The transaction id that was taken after the snapshot; null: none was taken.
    txid xid8,
    -- What is visible.
    snapshot pg_snapshot
);

-- A group's position in a lane. All that is visible in `seen` was delivered. While there is a target, the difference up
-- to it is worked through in the order of sequences.
create type postbus.log_cursor as (
    -- What was delivered.
    seen postbus.log_position,
    -- The position up to which the cursor is on its way; null: it is not.
    target postbus.log_position,
    -- On the way to the target: the last segment of which messages are done ...
    done_sequence bigint,
    -- ... up to and including the message with this index.
    done_index integer,
    -- Up to this sequence, older messages do not count ...
    since_bound bigint,
    -- ... if they were published before this time ...
    since_at timestamp with time zone,
    -- ... or have a lower id than this.
    since_id bigint,
    -- The position at which the cursor ends; null: it has no end.
    until postbus.log_position,
    -- since_at holds for what is visible in this snapshot; null: for all.
    since_snapshot pg_snapshot
);

-- A row of read_log: a segment, or the last row, which tells how to go on.
create type postbus.log_row as (
    -- The segment's sequence; null in the last row.
    sequence bigint,
    -- The lane.
    lane integer,
    -- How many messages the segment has.
    count integer,
    -- How many bytes its payloads have.
    bytes integer,
    -- The index of the first message that is not done.
    first_index integer,
    -- When the messages were published.
    published_at timestamp with time zone,
    -- The media type of all payloads.
    content_type text,
    -- The media type of each payload.
    content_types text[],
    -- The key of each message.
    keys text[],
    -- The correlation id of each message.
    correlation_ids text[],
    -- The headers of each message, as JSON.
    headers text[],
    -- The payloads, or the lines of all: see segment.payloads.
    payloads bytea[],
    -- Last row: the cursor when all rows are done.
    next_cursor text,
    -- Last row: the cursor while some rows are not done.
    during_cursor text,
    -- Last row: there was more to read than was asked for.
    more boolean,
    -- Last row: the position up to which was read.
    read_target text
);

-- How many messages were published to each PUB_SUB topic so far. Counted by the sweep, behind the publishers.
create table postbus.topic_count (
    -- The topic.
    topic_id bigint not null,
    -- How many messages.
    messages bigint default 0 not null,
    -- How many bytes of payload.
    bytes bigint default 0 not null,
    primary key (topic_id)
);

-- How far the sweep has counted in each log storage.
create table postbus.storage_count (
    -- The log storage.
    storage_id integer not null,
    -- All that is visible in it was counted in topic_count.
    cursor postbus.log_cursor not null,
    primary key (storage_id)
);

-- A group's registration on a topic. A late group's history is read by a subscription of its own (catch_up_of). Written
-- by subscribe, by heartbeats, and by the sweep.
create table postbus.subscription (
    -- The subscription.
    id bigint generated always as identity,
    -- The topic.
    topic_id bigint not null,
    -- The group.
    group_name text not null,
    -- ACTIVE, PAUSED, DEAD (without heartbeats), or CANCELLED, which is final.
    state text default 'ACTIVE'::text not null,
    -- Where the group began: FROM_NOW, FROM_BEGINNING, FROM_TIMESTAMP or FROM_MESSAGE_ID.
    start text not null,
    -- FROM_TIMESTAMP: the time.
    start_at timestamp with time zone,
    -- FROM_MESSAGE_ID: the id.
    start_id bigint,
    -- When the group subscribed.
    subscribed_at timestamp with time zone default clock_timestamp() not null,
    -- The end of the log at that time.
    subscribed postbus.log_position not null,
    -- When the state last changed.
    state_changed_at timestamp with time zone default clock_timestamp() not null,
    -- The group's last heartbeat.
    seen_at timestamp with time zone default clock_timestamp() not null,
    -- What a failed message does to later ones of its key: block, or pass.
    on_failure text default 'block'::text not null,
    -- How many messages of topic_count the group does not get: published before it began, skipped, or lost.
    passed_before bigint default 0 not null,
    -- How the group works through history: see catch_up_options.
    catch_up jsonb default '{}'::jsonb not null,
    -- This subscription reads the history of that one, of the same group.
    catch_up_of bigint,
    -- How many looks of detect_dead in a row have found no new heartbeat.
    missed integer default 0 not null,
    -- When the last of these looks was.
    missed_at timestamp with time zone,
    -- The topic was a QUEUE, and the group begins when that is empty.
    waits_for_queue boolean default false not null,
    -- The keys of the messages that the group wants; null: all.
    keys text[],
    -- The scope that made this subscription; null: the group subscribed to the topic itself.
    scope_id bigint,
    -- The cursor at which the group began.
    started postbus.log_cursor,
    -- When the last process of the group stopped in an orderly way. It holds while seen_at is not later.
    stopped_at timestamp with time zone,
    -- That process.
    stopped_by text,
    -- Since when more of the group's calls fail than its health limits allow.
    failing_since timestamp with time zone,
    primary key (id)
);
create index subscription_catch_up_idx on postbus.subscription using btree (catch_up_of) where (catch_up_of is not null);
create unique index subscription_group_idx on postbus.subscription using btree (topic_id, group_name) where ((state <> 'CANCELLED'::text) and (catch_up_of is null));
create index subscription_name_idx on postbus.subscription using btree (group_name, topic_id);

-- Which process reads each lane for a group. Written by lease_lanes and release_lanes. A lane goes to another process
-- if its holder was not seen for the topic's lease.
create table postbus.lane (
    -- The group's subscription.
    subscription_id bigint not null,
    -- The lane.
    lane integer not null,
    -- The process that reads the lane; null: none.
    holder text,
    -- A random number that proves that the holder has the lane.
    token uuid default gen_random_uuid() not null,
    -- When the holder took it.
    held_since timestamp with time zone,
    -- The lane's last row in the cursor ledger at that time.
    held_number bigint,
    -- How many holders in a row vanished before they had done anything.
    deaths integer default 0 not null,
    -- Up to this sequence a message may have killed those holders.
    careful_until bigint,
    primary key (subscription_id, lane)
) with (fillfactor=50);

-- The ledger of cursors: one row for each step of each lane. The row with the highest number counts. Rows are only
-- inserted, so that the hottest rows there are do not bloat; the sweep deletes older ones. The primary key is the
-- fence: who inserts a number that is taken has lost the lane.
create table postbus.cursor (
    -- The group's subscription.
    subscription_id bigint not null,
    -- The lane.
    lane integer not null,
    -- Counts the steps, from 1 on.
    number bigint not null,
    -- How far the group has come.
    cursor postbus.log_cursor not null,
    -- How many messages the group is done with in this lane since it subscribed.
    passed bigint default 0 not null,
    -- When the group got there.
    at timestamp with time zone default clock_timestamp() not null,
    -- When a process took the lane by inserting this row; null: it is a step of the holder.
    fenced_at timestamp with time zone,
    -- The process that held the lane.
    worker text,
    -- Why the cursor was set: start, seek, skip or catch-up; null: it advanced.
    moved text,
    -- The last segment number that was handed out when the row was written: rebase goes by it.
    handed_out bigint default coalesce(pg_sequence_last_value('postbus.segment_number'::regclass), (0)::bigint) not null,
    primary key (subscription_id, lane, number)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);

-- Messages that a group has settled although its cursor is not past them. Whoever takes the lane reads them again, and
-- passes them by. Written by defer, note_done and settlements; deleted when the cursor is past them.
create table postbus.settled_ahead (
    -- The group's subscription.
    subscription_id bigint not null,
    -- The lane.
    lane integer not null,
    -- The segment.
    sequence bigint not null,
    -- Which messages of the segment.
    indexes int4multirange not null,
    primary key (subscription_id, lane, sequence)
);

-- Which processes work for which groups: lanes are shared out among them. Written by lease_lanes and leave_groups.
create table postbus.group_worker (
    -- The group's subscription.
    subscription_id bigint not null,
    -- The process.
    worker text not null,
    -- When it joined.
    joined_at timestamp with time zone default clock_timestamp() not null,
    primary key (subscription_id, worker)
);

-- What each member of a group has done. Written by group_heartbeat.
create table postbus.member (
    -- The group's subscription.
    subscription_id bigint not null,
    -- The member.
    name text not null,
    -- How many messages it has handled.
    processed bigint default 0 not null,
    -- How many attempts have failed.
    failed bigint default 0 not null,
    -- How many messages its filter has passed by.
    filtered bigint default 0 not null,
    -- How many messages it had in hand at its last heartbeat.
    in_flight bigint default 0 not null,
    -- Its last heartbeat.
    seen_at timestamp with time zone default clock_timestamp() not null,
    -- How long its handlers took, all together.
    handling_seconds double precision default 0 not null,
    primary key (subscription_id, name)
) with (fillfactor=50);

-- Deferred messages: copies of messages that a group's cursor has passed and that are not settled. They wait for a
-- retry, are parked behind another message of their key, are buffered for pops, or are in hand of a pop. Inserted by
-- defer, fill_buffer and hand_over; deleted when they are settled.
create table postbus.deferred (
    -- The group's subscription.
    subscription_id bigint not null,
    -- The lane that the message came from.
    lane integer not null,
    -- The message's id.
    id bigint not null,
    -- Its segment's sequence: the order within a key.
    sequence bigint not null,
    -- The message waits behind another one of its key.
    parked boolean default false not null,
    -- When it may be tried; while a pop has it in hand (token), when that lease ends.
    due_at timestamp with time zone default clock_timestamp() not null,
    -- How many attempts have begun.
    attempts integer default 0 not null,
    -- The error of the last attempt.
    last_error text,
    -- When the message was published.
    published_at timestamp with time zone not null,
    -- The key by which messages are ordered; null: none.
    key text,
    -- What the publisher gave to connect messages.
    correlation_id text,
    -- The media type of the payload.
    content_type text not null,
    -- Names and values that the publisher gave.
    headers jsonb,
    -- The content.
    payload bytea not null,
    -- The message is in the pull buffer: it was read to be popped, and not because it failed.
    buffered boolean default false not null,
    -- The pop that has the message in hand, until due_at; null: none.
    token uuid,
    -- The member that popped it.
    member text,
    -- max_retention counts from then; null: from when the message was published.
    kept_from timestamp with time zone,
    -- The stretch in which the message was put off; null: not known. Below 0: the stretch in which the subscription
    -- stood when it was given the message, which does not tell of the message.
    stretch bigint,
    -- The message was in hand with others when its process ended: it is tried alone before it is charged.
    suspected boolean default false not null,
    -- How often the suspect took longer than the time for which it was tried alone.
    outlasted integer,
    -- A worker has it in hand: whether it has no other message in hand. Null: it is not in hand, or a pop took it with
    -- others.
    alone boolean,
    primary key (subscription_id, lane, id)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);
create index deferred_due_idx on postbus.deferred using btree (subscription_id, due_at, lane) where (not parked);
create index deferred_key_idx on postbus.deferred using btree (subscription_id, lane, key, sequence, id);
create index deferred_token_idx on postbus.deferred using btree (token) where (token is not null);

-- Signs that a group lives that pulls. Inserted by settlements, whose transactions may stay open for long and must not
-- lock the group's row; detect_dead moves them to subscription.seen_at.
create table postbus.sign_of_life (
    -- The group's subscription.
    subscription_id bigint not null,
    -- When it settled something.
    at timestamp with time zone not null
);
create index sign_of_life_idx on postbus.sign_of_life using btree (subscription_id);

-- How many calls for messages of a group ended well, and how many failed, in the last minutes. Only inserted into, so
-- that settlements do not wait for one another; the sweep adds up the rows of a minute.
create table postbus.group_tally (
    -- The group's subscription.
    subscription_id bigint not null,
    -- When the calls ended.
    at timestamp with time zone not null,
    -- How many ended well.
    handled bigint not null,
    -- How many failed.
    failed bigint not null
);
create index group_tally_at on postbus.group_tally using btree (subscription_id, at);

-- What happened to groups and is to be logged. Inserted by the functions that notice it; take_group_events deletes each
-- row and gives it to the one process that logs it.
create table postbus.group_event (
    -- The order of the events.
    id bigint generated always as identity,
    -- When it happened.
    at timestamp with time zone default clock_timestamp() not null,
    -- The log event, such as group.dead.
    name text not null,
    -- The topic.
    topic text not null,
    -- The group.
    group_name text not null,
    -- The fields of the log event.
    fields jsonb not null,
    primary key (id)
);

-- Messages that were removed before a group had them. Written by the sweep.
create table postbus.loss (
    -- The group's subscription.
    subscription_id bigint not null,
    -- When they were removed.
    at timestamp with time zone default clock_timestamp() not null,
    -- Why.
    reason text not null,
    -- How many.
    messages bigint not null
);
create index loss_idx on postbus.loss using btree (subscription_id);

-- From when on groups count as being in trouble. Written by set_health_limits. A value that is null follows from the
-- less specific rows, and then from the defaults: see health_limits.
create table postbus.health_limit (
    -- The topic; '' stands for all.
    topic text default ''::text not null,
    -- The group; '' stands for all.
    group_name text default ''::text not null,
    -- The share of calls that may fail; infinity: any.
    failed_share double precision,
    -- How many messages may be before the group; infinity: any.
    lag double precision,
    -- How old the oldest of these may be; infinity: any age.
    lag_seconds double precision,
    -- How long the group may be stopped; infinity: for ever.
    stopped_seconds double precision,
    primary key (topic, group_name)
);

-- In which partitions the ledger of a subscription has receipts, so that nobody has to look into all of them. Written
-- when the ledger is folded.
create table postbus.receipt_partition (
    -- The group's subscription.
    subscription_id bigint not null,
    -- The partition.
    epoch integer not null,
    -- The log storage.
    storage_id integer not null,
    primary key (subscription_id, epoch)
);

-- What a subscription has worked through in a lane, from where it was set to where it was set elsewhere, or ended.
-- Written at such events only; rows outlive the subscription.
create table postbus.stretch (
    -- The subscription.
    subscription_id bigint not null,
    -- The lane.
    lane integer not null,
    -- The row of the cursor ledger with which the stretch began.
    number bigint not null,
    -- The topic.
    topic_id bigint not null,
    -- The group's own subscription, if another one reads its history.
    group_id bigint not null,
    -- The group.
    group_name text not null,
    -- The transaction that began the stretch.
    txid xid8 default pg_current_xact_id() not null,
    -- Where the stretch begins.
    began postbus.log_cursor not null,
    -- Where it ends; null while the subscription stands in it: then its cursor tells.
    reached postbus.log_cursor,
    -- The end of the log when the group died or left; null while it lives.
    died postbus.log_position,
    primary key (subscription_id, lane, number)
);
create index stretch_topic_idx on postbus.stretch using btree (topic_id, lane);

-- A moment at which retained messages came to be before a group: it joined late, came back from the dead, was set back,
-- or its history went on. What was completed in the lane at that moment stays completed: what the snapshot shows, every
-- live group was past, and some group had settled. Written at such events.
create table postbus.joining (
    -- The moment.
    id bigint generated always as identity,
    -- The topic.
    topic_id bigint not null,
    -- The lane.
    lane integer not null,
    -- When it was.
    at timestamp with time zone default clock_timestamp() not null,
    -- The last sequence that had been handed out.
    sequence bigint not null,
    -- What was visible.
    snapshot pg_snapshot not null,
    -- Where the live groups stood, the last of them.
    cursors postbus.log_cursor[] not null,
    -- Of each cursor: its group, if the group may have settled more before than it is past now; null otherwise.
    owners text[] not null,
    primary key (id)
);
create index joining_topic_idx on postbus.joining using btree (topic_id, lane);

-- A segment whose messages are asked for: see delivery_statuses.
create type postbus.segment_ref as (
    -- The segment's sequence.
    sequence bigint,
    -- The lane.
    lane integer,
    -- The publishing transaction.
    txid xid8,
    -- How many messages it has.
    count integer,
    -- When they were published.
    published_at timestamp with time zone
);

-- What is known of a single message beside the stretches: see message_facts.
create type postbus.message_fact as (
    -- The message's id.
    id bigint,
    -- The group's subscription.
    subscription_id bigint,
    -- The group.
    group_name text,
    -- The stretch: see deferred.stretch.
    stretch bigint,
    -- What is known, such as RETRYING, DEAD or AHEAD.
    kind text,
    -- The transaction that settled the message.
    txid xid8,
    -- When that was.
    at timestamp with time zone,
    -- Who settled it.
    worker text,
    -- How many attempts it had.
    attempts integer,
    -- Its last error.
    error text
);

-- What became of messages of one segment at one group: see delivery_statuses.
create type postbus.delivery_status as (
    -- The segment's sequence.
    sequence bigint,
    -- The first of the messages ...
    first_index integer,
    -- ... and the last: all of them share the rest of the row.
    last_index integer,
    -- The group.
    group_name text,
    -- Its last subscription.
    subscription_id bigint,
    -- PENDING: not read yet, or just being handled. RETRYING: failed, to be tried again. WAITING: behind a message of
    -- its key that failed. COMPLETED: done for good, whatever becomes of the group or its position. DEAD: given up; it
    -- is, or was, a dead letter of the group. ABANDONED: it was waiting when the group ended. SKIPPED: the group began
    -- later, or was set past it.
    status text,
    -- The group is required for the message: it has completed it; or the message is not completed, and the group has
    -- given it up, or lives and has it before it.
    required boolean,
    -- The group is required for it, or was at some time.
    was_wanted boolean,
    -- The same for all groups: some group has completed the message, none has given it up, and none that lives has it
    -- before it; or so it was at a joining. Then no group that had it before it afterwards is required for it.
    is_completed boolean,
    -- The group has it before it, though it may have completed it long ago.
    is_before boolean,
    -- It waits to be tried or popped, or a pop has it in hand.
    waits boolean
);

-- History that a group works through beside what is published now: by a subscription of its own, which ends where the
-- group began, or where it came back from the dead. Inserted with that subscription, changed by its process and the
-- sweep.
create table postbus.catch_up (
    -- The subscription that reads the history; subscription.catch_up_of is the group's own.
    subscription_id bigint not null,
    -- Why there is history to read.
    reason text not null,
    -- IN_PROGRESS, or how it ended.
    status text default 'IN_PROGRESS'::text not null,
    -- How many messages there were to work through.
    total bigint not null,
    -- How many older ones were skipped, beyond max_messages.
    skipped bigint default 0 not null,
    -- When it began.
    started_at timestamp with time zone default clock_timestamp() not null,
    -- When it ended.
    ended_at timestamp with time zone,
    -- How many messages were worked through, once it has ended.
    processed bigint,
    -- How many messages per second its process allowed itself, as it said last.
    allowed_rate double precision,
    -- How long the process's own statements took, as it said last.
    p95 interval,
    primary key (subscription_id)
);

-- A row of pop: one for each lease, and a last one that tells how to go on.
create type postbus.popped as (
    -- The topic.
    topic text,
    -- Proves the lease; null: the messages are settled already.
    token uuid,
    -- When the lease ends.
    ends_at timestamp with time zone,
    -- How long it is.
    lease_length interval,
    -- The id of each message.
    ids bigint[],
    -- When each was published.
    published_ats timestamp with time zone[],
    -- How many attempts of each have begun.
    attempts integer[],
    -- The priority of each.
    priorities smallint[],
    -- The key of each.
    keys text[],
    -- The correlation id of each.
    correlation_ids text[],
    -- The media type of each payload.
    content_types text[],
    -- The headers of each, as JSON.
    headers text[],
    -- The payloads.
    payloads bytea[],
    -- Last row: asking again at once is worth it.
    more boolean,
    -- Last row: how long it is until something is expected.
    next_due interval,
    -- Last row: the scan floor for the next pop of the same.
    next_scan_floor text
);

-- What a claim returns: see claim_as_of.
create type postbus.claimed as (
    -- Proves the lease; null: there was nothing to do.
    token uuid,
    -- When the lease ends.
    ends_at timestamp with time zone,
    -- How long it is.
    lease_length interval,
    -- The scan floor for the next claim.
    next_scan_floor text,
    -- Asking again at once is worth it.
    more boolean,
    -- The topic is ordered.
    ordered boolean,
    -- If nothing was found: how long it is until something is expected.
    next_due interval,
    -- The queue became PUB_SUB, and what is left in it is claimed.
    moved boolean,
    -- The id of each message.
    ids bigint[],
    -- When each was published.
    published_ats timestamp with time zone[],
    -- How many attempts of each have begun.
    attempts integer[],
    -- The priority of each.
    priorities smallint[],
    -- The key of each.
    keys text[],
    -- The correlation id of each.
    correlation_ids text[],
    -- The media type of each payload.
    content_types text[],
    -- The headers of each, as JSON.
    headers text[],
    -- The payloads.
    payloads bytea[]
);

-- What a claim of suspects returns: see claim_suspects_as_of.
create type postbus.claimed_suspects as (
    -- Proves the lease; null: there was nothing to do.
    token uuid,
    -- When the lease ends.
    ends_at timestamp with time zone,
    -- How long it is.
    lease_length interval,
    -- The topic is ordered.
    ordered boolean,
    -- The id of each message.
    ids bigint[],
    -- When each was published.
    published_ats timestamp with time zone[],
    -- How many attempts of each have begun.
    attempts integer[],
    -- The priority of each.
    priorities smallint[],
    -- The key of each.
    keys text[],
    -- The correlation id of each.
    correlation_ids text[],
    -- The media type of each payload.
    content_types text[],
    -- The headers of each, as JSON.
    headers text[],
    -- The payloads.
    payloads bytea[],
    -- How often the suspect took longer than the time for which it was tried alone.
    outlasted integer
);

-- What a group has subscribed to, and where it starts in topics that it has no subscription for yet. Written by
-- subscribe_scope and forget_scope. A group starts with messages that were published at start_at or later, and, unless
-- that is later than recorded_at, with all that the snapshot does not show: what was committed after the record.
create table postbus.scope (
    -- The scope.
    id bigint generated always as identity,
    -- The group.
    group_name text not null,
    -- A topic ...
    topic text,
    -- ... or one key of that topic ...
    key text,
    -- ... or all topics of a namespace ...
    namespace text,
    -- ... or of a task ...
    task text,
    -- ... or with names that fit a pattern.
    pattern text,
    -- Where the group starts: new, all, timestamp or message.
    mode text not null,
    -- The time from which it starts; null: with all that is retained.
    start_at timestamp with time zone,
    -- When the scope was recorded.
    recorded_at timestamp with time zone default clock_timestamp() not null,
    -- What was visible then.
    snapshot pg_snapshot not null,
    -- subscription.on_failure of the subscriptions that it makes.
    on_failure text default 'block'::text not null,
    -- subscription.catch_up of the subscriptions that it makes.
    catch_up jsonb default '{}'::jsonb not null,
    -- Mode message: the id from which the group starts.
    start_id bigint,
    primary key (id),
    check (((num_nonnulls(topic, namespace, task, pattern) = 1) and ((key is null) or (topic is not null))))
);
create unique index scope_idx on postbus.scope using btree (group_name, coalesce(topic, ''::text), coalesce(namespace, ''::text), coalesce(task, ''::text), coalesce(pattern, ''::text), ((key is null)), coalesce(key, ''::text));

-- Pops from all topics of a scope. While such a pop has messages in hand, its group lives in each of the topics.
-- Inserted by pop_scope, deleted by the sweep.
create table postbus.scope_pop (
    -- The scope.
    scope_id bigint not null,
    -- The pop: deferred.token of its messages.
    token uuid not null
);

-- Processes that consume. Written by heartbeat and sign_off.
create table postbus.worker (
    -- The process.
    name text not null,
    -- Its host.
    host text not null,
    -- Its process id there.
    pid integer not null,
    -- The topics that it consumes.
    topics text[] not null,
    -- When it started.
    started_at timestamp with time zone default clock_timestamp() not null,
    -- Its last heartbeat.
    seen_at timestamp with time zone default clock_timestamp() not null,
    -- A random number that proves that a call comes from this process.
    secret uuid,
    primary key (name)
);

-- Processes that sweep and consume nothing. Those that consume stand in worker. Written by note_sweeper and
-- forget_sweeper.
create table postbus.sweeper (
    -- The process.
    name text not null,
    -- Its host.
    host text not null,
    -- Its process id there.
    pid integer not null,
    -- When it started.
    started_at timestamp with time zone default clock_timestamp() not null,
    -- When it was last heard of.
    seen_at timestamp with time zone default clock_timestamp() not null,
    -- A random number that proves that a call comes from this process.
    secret uuid,
    primary key (name)
);

-- Sinks that relays cannot reach. Written by note_sink_away and forget_sink_away.
create table postbus.sink_away (
    -- The topic that is relayed.
    topic text not null,
    -- The relay's group; '' for a QUEUE.
    group_name text not null,
    -- The relaying process.
    process text not null,
    -- The sink.
    sink text not null,
    -- The last error.
    error text not null,
    -- Since when the sink is away.
    since timestamp with time zone default clock_timestamp() not null,
    -- When the process last said so.
    told_at timestamp with time zone default clock_timestamp() not null,
    -- A random number that proves that a call comes from this process.
    secret uuid,
    primary key (topic, group_name, process)
);

-- How sweeping is done: one row. Written by set_sweeping.
create table postbus.sweep_setting (
    -- Always true, so that there is only one row.
    only_row boolean default true not null,
    -- How often is looked for what can be removed ...
    "interval" interval default '00:05:00'::interval not null,
    -- ... this many rows at a time.
    batch_size integer default 10000 not null,
    -- How often is looked for groups without heartbeats.
    detection_interval interval default '00:01:00'::interval not null,
    -- How long DEAD and CANCELLED subscriptions are kept.
    subscription_retention interval default '30 days'::interval not null,
    -- How long entries of the audit log are kept.
    audit_retention interval default '90 days'::interval not null,
    primary key (only_row),
    check (only_row)
);

-- What each job of sweeping has done last. Written by the jobs.
create table postbus.sweep_job (
    -- The job.
    job text not null,
    -- The log storage, of jobs that go through the log; 0 otherwise.
    storage_id integer default 0 not null,
    -- How many runs were noted: see note_run.
    runs bigint default 0 not null,
    -- When the last of these began.
    started_at timestamp with time zone,
    -- How long it took.
    took interval,
    -- What it removed: see the view sweep_jobs.
    removed bigint default 0 not null,
    -- What all noted runs removed.
    removed_total bigint default 0 not null,
    -- When the job last failed.
    failed_at timestamp with time zone,
    -- That error.
    error text,
    primary key (job, storage_id)
) with (fillfactor=50);

-- How much was published and swept at some moments. Written by sweep, which keeps twenty rows.
create table postbus.sweep_sample (
    -- The moment.
    at timestamp with time zone not null,
    -- How many messages were published to all PUB_SUB topics so far.
    published bigint not null,
    -- How many of these were removed.
    swept bigint not null,
    -- How many should have been removed and were not, of queues too.
    backlog bigint not null,
    primary key (at)
);

-- Messages that a consumer is done with: what makes its effects happen once, although deliveries repeat. Inserted in
-- the transaction of the effect, deleted by the sweep.
create table postbus.inbox (
    -- The consumer.
    consumer text not null,
    -- The message's event id.
    message_id text not null,
    -- When the consumer was done.
    done_at timestamp with time zone not null,
    -- When the record may be forgotten.
    expires_at timestamp with time zone not null,
    primary key (consumer, message_id)
);
create index inbox_expires_at_idx on postbus.inbox using btree (expires_at);

-- Queues that became PUB_SUB: consumers work off what is left in the queue, and the groups that were named wait for
-- that. Inserted by move_topic, changed by continue_moves.
create table postbus.moving (
    -- The topic.
    topic_id bigint not null,
    -- When it became PUB_SUB.
    since timestamp with time zone default clock_timestamp() not null,
    -- Whether the queue was ordered.
    ordered boolean not null,
    -- Ids of the log begin here; lower ones are of the queue.
    first_id bigint not null,
    -- The subscription that gets what no consumer of the queue takes.
    heir bigint,
    -- The heir gets it at once, without waiting for consumers of the queue.
    hand_over boolean not null,
    -- Open transactions that may have published to the queue; null: not looked for yet.
    users text[],
    -- When the groups began.
    ended_at timestamp with time zone,
    primary key (topic_id)
);

-- Messages of other outboxes that were imported, so that no import does it twice. Written by import_messages and
-- import_seen.
create table postbus.imported (
    -- The outbox's table.
    source text not null,
    -- The message's id there.
    source_id text not null,
    -- The message's id here; null: no group needed it any more.
    message_id bigint,
    -- When it was imported.
    imported_at timestamp with time zone default clock_timestamp() not null,
    primary key (source, source_id)
);

-- Groups of other outboxes that were imported. Written by import_group.
create table postbus.imported_group (
    -- The outbox's table.
    source text not null,
    -- The topic.
    topic_id bigint not null,
    -- The group.
    group_name text not null,
    -- When it was imported.
    imported_at timestamp with time zone default clock_timestamp() not null,
    primary key (source, topic_id, group_name)
);

-- The roles that `postbus migrate` has given their rights. Another role needs them again, even one of the same name.
-- Written by the grants.
create table postbus.role_granted (
    -- producer, consumer, observer, operator or admin.
    role text not null,
    -- The role.
    oid oid not null,
    primary key (role)
);

-- What roles may do with some topics only. Written by grant_topic and revoke_topic.
create table postbus.topic_grant (
    -- The role's name.
    role text not null,
    -- The role: another one of that name has no grants.
    role_oid oid not null,
    -- The names of topics; * stands for any text.
    pattern text not null,
    -- publish, consume or read.
    action text not null,
    -- The login that granted it.
    granted_by text not null,
    -- When it was granted.
    granted_at timestamp with time zone default clock_timestamp() not null,
    primary key (role, pattern, action)
);

-- Callers of the HTTP server. Written by create_token and revoke_token.
create table postbus.token (
    -- The public part of the token.
    id text not null,
    -- A hash of the secret part: nobody can read here what a caller has to send.
    hash bytea not null,
    -- Whose token it is, for people.
    name text not null,
    -- The roles that it has.
    roles text[] not null,
    -- Patterns of the topics that it is limited to; * stands for any text.
    topics text[] not null,
    -- When it was created.
    created_at timestamp with time zone default clock_timestamp() not null,
    -- When it expires; null: never.
    expires_at timestamp with time zone,
    -- When it was revoked; null: it is valid.
    revoked_at timestamp with time zone,
    -- Patterns of the groups that it is limited to.
    groups text[] default '{*}'::text[] not null,
    -- Whether it is shown what publishers and handlers have written.
    payloads boolean default true not null,
    -- The login that created it.
    created_by text,
    -- When it was last used. Written seldom: see note_token_uses.
    last_used_at timestamp with time zone,
    primary key (id)
);

-- Where messages are pushed by HTTP. Written by create_webhook and set_webhook.
create table postbus.webhook (
    -- The webhook.
    name text not null,
    -- The topic.
    topic text not null,
    -- The group; null: the consumer of a queue.
    group_name text,
    -- Where messages are sent to.
    url text not null,
    -- Signs what is sent. It is kept as it is, and no view shows it.
    secret text not null,
    -- How many requests run at once.
    concurrency integer not null,
    -- How long a request may take.
    timeout interval not null,
    -- Whether messages are sent.
    enabled boolean not null,
    -- When it was created.
    created_at timestamp with time zone default clock_timestamp() not null,
    -- When it was last changed.
    changed_at timestamp with time zone default clock_timestamp() not null,
    primary key (name)
);
create unique index webhook_consumer_idx on postbus.webhook using btree (topic, coalesce(group_name, ''::text));

-- The audit log: what was done by whom. Only note_action inserts, only the sweep deletes, and no role may touch it. Ids
-- have gaps where a transaction was rolled back.
create table postbus.audit_entry (
    -- The order of the entries.
    id bigint generated always as identity,
    -- When it was done.
    at timestamp with time zone default clock_timestamp() not null,
    -- The user who logged in to the database.
    login text not null,
    -- The role that the session had taken by SET ROLE.
    role text,
    -- Who acts, as the caller says: who uses a server or a command line that has the login.
    actor text,
    -- application_name, as the caller says.
    program text,
    -- The caller's address; null over a Unix socket.
    address inet,
    -- What was done, such as topic.create.
    action text not null,
    -- The topic.
    topic text,
    -- The group.
    group_name text,
    -- What else was acted on: a token, a webhook, a scope, ...
    target text,
    -- How many messages or rows.
    affected bigint,
    -- How the caller chose them.
    given jsonb,
    -- What was changed, as it was.
    before jsonb,
    -- What was changed, as it is now.
    after jsonb,
    primary key (id)
);
create index audit_entry_at_idx on postbus.audit_entry using btree (at);

-- common: functions and views

-- The migrations and the code that are installed in this database. Every client asks before it starts.
create function postbus.schema_state(
    out migrations integer,
    out baseline text,
    out breaking integer,
    out code_version text,
    out code_checksum text
) returns record;

-- The identity of this database, which is part of the event ids of its messages: see event_id.
create function postbus.source() returns uuid;

-- topics: functions and views

-- The id of a topic, computed from its name. The same on every server and version.
create function postbus.topic_id(name text) returns bigint;

-- Creates a topic with options, such as {"ordered": true, "lease": "1 minute"}. Subscribes the groups whose scopes
-- match it. Refuses a topic that exists. Refuses a name that is in use, if the options would change the order of its
-- messages.
create function postbus.create_topic(name text, options jsonb default '{}'::jsonb) returns postbus.topic;

-- Gives a topic a row with default options, unless it has one, so that it is listed and can be paused.
create function postbus.ensure_topic(name text) returns void;

-- Changes options of a topic. Subscribes the groups whose scopes match it by its new labels. A topic stays in the log
-- storage that it was created in, whatever its retention becomes; if the storage is its own, the storage's period
-- follows the retention.
create function postbus.set_topic(name text, options jsonb) returns postbus.topic;

-- Pauses a topic: published messages wait, and nothing is claimed. Pausing twice changes nothing.
create function postbus.pause_topic(name text) returns void;

-- Resumes a paused topic, and wakes its consumers.
create function postbus.resume_topic(name text) returns void;

-- Deletes the messages of a topic that wait to be claimed, now or later. Leased messages stay. Returns the number of
-- messages; with dry_run it only counts them.
create function postbus.purge_topic(name text, dry_run boolean default false) returns bigint;

-- Deletes a topic. Refuses a topic that has messages, unless `force` is given: then its messages and dead letters are
-- deleted, too, and leases on them are lost.
create function postbus.delete_topic(name text, force boolean default false) returns void;

-- Makes a QUEUE a PUB_SUB topic while producers and consumers go on. From its commit on, messages go to the log. The
-- queue's consumers still handle messages that are in the queue, or that open transactions publish to the queue. The
-- groups that are named here wait for that, and then begin with the first message of the log: see continue_moves.
create function postbus.move_topic(
    name text,
    group_names text[] default '{}'::text[],
    options jsonb default '{}'::jsonb,
    hand_over boolean default false,
    dry_run boolean default false,
    out waiting bigint,
    out retrying bigint,
    out leased bigint,
    out scheduled bigint,
    out prioritised bigint
) returns record;

-- Continues moves of queues to PUB_SUB: lets groups begin whose queue is empty, and gives late messages to the heir.
-- Any process may call it at any time. Returns what the moves are waiting for: all moves, or that of one topic.
create function postbus.continue_moves(
    name text default null::text
) returns table (
    topic text,
    waiting bigint,
    retrying bigint,
    leased bigint,
    scheduled bigint,
    transactions integer,
    ended_at timestamp with time zone
);

-- storage: functions and views

-- Publishes the partitions of a new log storage to all sessions: see published_epoch. This takes two transactions: one
-- adds the standby partition, which makes all sessions look up the storages again; the next lets them use what they
-- know. Returns whether there is more to do at once. The sweep calls it, too.
create function postbus.publish_partitions(storage_id integer) returns boolean;

-- The log storages, for processes that sweep them.
create function postbus.storages() returns setof integer;

-- publish: functions and views

-- Whether a text may be the event id of a message that came from elsewhere: 1 to 200 printable ASCII characters,
-- without spaces at its ends. So every broker accepts it unchanged. Python has the same rule.
create function postbus.is_event_id(given text) returns boolean;

-- The event id of a message: the same on every path that the message takes, and no other message in the world has it.
create function postbus.event_id(
    topic text,
    id bigint,
    published_at timestamp with time zone,
    headers jsonb default null::jsonb,
    source uuid default postbus.source()
) returns text;

-- Wakes the consumers of topics. Called after the publishing transaction, by the process that published: a NOTIFY
-- within the transaction would make all commits of the database wait for one another. Returns the topics that notify in
-- the transaction anyway: their consumers need no other wake-up.
create function postbus.wake(topic_ids bigint[]) returns bigint[];

-- The id of the first message of a segment: the segment's number, which is its sequence without the epoch, times 1024.
-- The ids of the other messages follow.
create function postbus.first_id(sequence bigint) returns bigint;

-- The first `count` lines of a payload. If it has fewer, the rest are empty.
create function postbus.lines_of(lines bytea, count integer) returns bytea[];

-- The payloads of a segment, one by one: see publish_lines.
create function postbus.payloads_of(payloads bytea[], count integer, in_lines boolean) returns bytea[];

-- Publishes one message in the caller's transaction, and returns its id.
create function postbus.publish(
    topic text,
    payload bytea,
    key text default null::text,
    headers jsonb default null::jsonb,
    priority integer default 4,
    delay interval default null::interval,
    deliver_at timestamp with time zone default null::timestamp with time zone,
    dedup_key text default null::text,
    correlation_id text default null::text,
    content_type text default 'application/octet-stream'::text
) returns bigint;
create function postbus.publish(
    topic text,
    payload jsonb,
    key text default null::text,
    headers jsonb default null::jsonb,
    priority integer default 4,
    delay interval default null::interval,
    deliver_at timestamp with time zone default null::timestamp with time zone,
    dedup_key text default null::text,
    correlation_id text default null::text
) returns bigint;
create function postbus.publish(
    topic text,
    payload text,
    key text default null::text,
    headers jsonb default null::jsonb,
    priority integer default 4,
    delay interval default null::interval,
    deliver_at timestamp with time zone default null::timestamp with time zone,
    dedup_key text default null::text,
    correlation_id text default null::text
) returns bigint;

-- Publishes many messages to one topic in the caller's transaction, and returns their ids in order.
create function postbus.publish_many(
    topic text,
    payloads bytea[],
    keys text[] default null::text[],
    headers jsonb[] default null::jsonb[],
    priorities integer[] default null::integer[],
    delays interval[] default null::interval[],
    deliver_ats timestamp with time zone[] default null::timestamp with time zone[],
    dedup_keys text[] default null::text[],
    correlation_ids text[] default null::text[],
    content_types text[] default null::text[],
    content_type text default 'application/octet-stream'::text
) returns bigint[];
create function postbus.publish_many(
    topic text,
    payloads jsonb[],
    keys text[] default null::text[],
    headers jsonb[] default null::jsonb[],
    priorities integer[] default null::integer[],
    delays interval[] default null::interval[],
    deliver_ats timestamp with time zone[] default null::timestamp with time zone[],
    dedup_keys text[] default null::text[],
    correlation_ids text[] default null::text[]
) returns bigint[];

-- Publishes many messages without options, each a line of `lines`, and returns their ids in order. For JSON, which has
-- no line breaks if its encoder adds none. `count` is the number of lines. Without it they are counted, except for
-- empty lines at the end.
create function postbus.publish_lines(
    topic text,
    lines bytea,
    count integer default null::integer,
    content_type text default 'application/json'::text
) returns bigint[];

-- queue: functions and views

-- The queues, of those that are given, that have suspects to be tried: see claim_suspects.
create function postbus.suspected(topics text[]) returns text[];

-- Leases up to max_count due messages of a topic to one member: see claim_as_of. A single expression returns the
-- result, which is the fastest way.
create function postbus.claim(
    topic text,
    member text,
    max_count integer,
    lease interval default null::interval,
    scan_floor text default null::text,
    max_bytes bigint default 16777216,
    with_suspects boolean default true
) returns postbus.claimed;

-- Leases suspects of a queue, apart from all other messages: see claim_suspects_as_of.
create function postbus.claim_suspects(
    topic text,
    member text,
    max_count integer default 1000,
    lease interval default null::interval,
    is_promised boolean default false
) returns postbus.claimed_suspects;

-- Notes that a suspect takes long, and that its process now handles other messages beside it. If the process ends, no
-- attempt is charged. The next time, the suspect is tried alone for longer. The token is that of a queue's lease, or of
-- a lane.
create function postbus.not_alone(token uuid, id bigint default null::bigint) returns void;

-- Extends leases: each ends `lease` from now. Returns the tokens of leases that are lost.
create function postbus.extend(tokens uuid[], lease interval) returns uuid[];

-- The topics and groups of leases, for the HTTP server, which limits callers to some of these. The group is null for a
-- queue. There is no row for a lease that has ended.
create function postbus.lease_owners(tokens uuid[]) returns table(token uuid, topic text, group_name text);

-- Acknowledges all open messages of leases. Returns the tokens of leases that are lost.
create function postbus.ack_leases(tokens uuid[]) returns uuid[];

-- Finishes messages of a lease. Returns the ids of lost messages.
create function postbus.ack(token uuid, ids bigint[]) returns bigint[];

-- Gives back messages of a lease for another attempt, after `delay` or the topic's backoff. Messages that have had
-- max_attempts (or the topic's) become dead letters. Returns what became of each message: 'retried', 'dead' or 'lost'.
create function postbus.retry(
    token uuid,
    ids bigint[],
    delay interval default null::interval,
    error text default null::text,
    max_attempts integer default null::integer
) returns table (
    message_id bigint,
    outcome text
);

-- Gives up messages of a lease: they become dead letters at once. Returns the ids of lost messages.
create function postbus.dead_letter(
    token uuid,
    ids bigint[],
    reason text,
    error text default null::text
) returns bigint[];

-- Gives back messages of a lease: the attempt does not count. Returns the ids of lost messages.
create function postbus.release(token uuid, ids bigint[]) returns bigint[];

-- Returns messages whose lease has ended: see return_expired_as_of.
create function postbus.return_expired(
    max_count integer default 1000,
    since timestamp with time zone default '-infinity'::timestamp with time zone
) returns bigint;

-- log: functions and views

-- Reads what a cursor has not seen, in the order of sequences: segments of some lanes of a topic, up to about max_count
-- messages and max_bytes of payload, but always one segment. Changes nothing: cursors move by `advance`.
create function postbus.read_log(
    topic text,
    lanes integer[],
    cursor text,
    max_count integer default 1000,
    max_bytes bigint default 16777216,
    target text default null::text,
    in_lines boolean default false
) returns setof postbus.log_row;

-- Moves the cursors of lanes, of any groups, in one statement. `tokens` prove that the caller holds the lanes.
-- `numbers` are those of the ledger rows that the caller last inserted, or got with the lane: the new rows get the next
-- numbers. done_sequences and done_indexes, where they are not null, name the last message of the step that the group
-- is done with. `passed` counts the messages that the group is done with since its last row.
create function postbus.advance(
    subscription_ids bigint[],
    lanes integer[],
    tokens uuid[],
    numbers bigint[],
    cursors text[],
    done_sequences bigint[],
    done_indexes integer[],
    passed bigint[]
) returns integer[];

-- Remembers messages that the holder of lanes is done with ahead of their cursors: parts of segments, from one index up
-- to another. The holder leaves the lanes, and the next holder must not handle these messages again. Lanes that the
-- caller has lost are skipped, and so are deferred messages, which are not settled, and messages that do not exist in
-- the lane.
create function postbus.note_done(
    tokens uuid[],
    lanes integer[],
    sequences bigint[],
    starts integer[],
    stops integer[]
) returns void;

-- The retained messages of a PUB_SUB topic, done or not, in the order of the log; the finished messages of a QUEUE, in
-- the order of their ids. Filters are a time, an event type and an aggregate, as the headers say. Begins after a
-- sequence and an index in its segment.
create function postbus.retained(
    topic text,
    since timestamp with time zone default null::timestamp with time zone,
    until timestamp with time zone default null::timestamp with time zone,
    event_type text default null::text,
    aggregate_type text default null::text,
    aggregate_id text default null::text,
    after_sequence bigint default 0,
    after_index integer default '-1'::integer,
    max_count integer default 1000,
    out at_sequence bigint,
    out at_index integer,
    out id bigint,
    out published_at timestamp with time zone,
    out key text,
    out correlation_id text,
    out content_type text,
    out headers text,
    out payload bytea
) returns setof record;

-- groups: functions and views

-- Registers a group on a topic, once. A group that is registered keeps its position, and its state unless it is DEAD.
-- Has to be called in a transaction of its own.
create function postbus.subscribe(
    topic text,
    group_name text,
    start text default 'FROM_NOW'::text,
    start_at timestamp with time zone default null::timestamp with time zone,
    start_id bigint default null::bigint,
    on_failure text default 'block'::text,
    catch_up jsonb default '{}'::jsonb,
    out subscription_id bigint,
    out state text,
    out is_new boolean,
    out lease interval,
    out heartbeat interval,
    out missed bigint,
    out skipped bigint,
    out catch_up_id bigint
) returns record;

-- Changes the state of a subscription, and notes that in the audit log: see change_group_state.
create function postbus.set_group_state(topic text, group_name text, state text) returns void;

-- Pauses a group: published messages wait for it. Pausing twice changes nothing.
create function postbus.pause_group(topic text, group_name text) returns void;

-- Resumes a paused group.
create function postbus.resume_group(topic text, group_name text) returns void;

-- Moves a group to a position, given as for subscribe. Processes that consume for it lose its lanes and start again
-- from there. Messages that wait for a retry, and those parked behind them, stay; a catch-up ends for good. Returns how
-- many messages are then ahead of the group. With dry_run nothing changes. Has to be called in a transaction of its
-- own.
create function postbus.seek(
    topic text,
    group_name text,
    start text,
    start_at timestamp with time zone default null::timestamp with time zone,
    start_id bigint default null::bigint,
    dry_run boolean default false
) returns bigint;

-- Shares out the lanes of groups among the processes that consume for them: each gets as many as any other, give or
-- take one. Returns what the caller has to do: 'take' a lane, which is its own from now on; 'give_up' a lane, by
-- release_lanes when it is done with it; 'stop' consuming for a subscription that is not ACTIVE any more, with the
-- state; and forget lanes that are 'lost'. The history of a group that is not among the given subscriptions is returned
-- as 'catch_up': then number is the group's own subscription, and cursor the options.
create function postbus.lease_lanes(
    worker text,
    subscription_ids bigint[],
    tokens uuid[],
    secret uuid default null::uuid
) returns table (
    subscription_id bigint,
    action text,
    state text,
    lane integer,
    token uuid,
    number bigint,
    cursor text,
    deaths integer,
    careful_until bigint
);

-- Gives lanes back: the caller has settled its messages in them, and another process may go on at once.
create function postbus.release_lanes(tokens uuid[]) returns void;

-- Ends the consuming of a process for groups: its lanes are free. With is_stop, this is a planned stop of those groups
-- for which no other living process consumes. The process gives the secret of its heartbeats.
create function postbus.leave_groups(
    worker text,
    subscription_ids bigint[],
    is_stop boolean default false,
    secret uuid default null::uuid
) returns void;

-- Keeps a lane from being taken until the end of the transaction, for handlers whose effect commits with the
-- settlement. Returns whether the caller still holds the lane.
create function postbus.hold_lane(token uuid) returns boolean;

-- Ends careful mode in a lane: its holder is past the sequence up to which a message may have ended former holders.
create function postbus.clear_caution(token uuid) returns void;

-- How many messages are ahead of a group, and when the oldest of them was published. Cheap: the sweep counts published
-- messages, cursors count those that the group is done with, and one message per lane is looked up. Messages in the
-- pull buffer that were never popped are counted one by one: they are few.
create function postbus.group_lag(
    subscription_id bigint,
    out messages bigint,
    out oldest_at timestamp with time zone
) returns record;

-- Moves the live groups of a topic, or one of them, past all messages that were published longer ago than older_than:
-- see force_complete_as_of.
create function postbus.force_complete(
    topic text,
    older_than interval,
    group_name text default null::text,
    dry_run boolean default false
) returns table (
    name text,
    messages bigint
);

-- Removes a group, in steps: call it again until it returns that the group is removed. The first call pauses the group,
-- so that processes finish and settle the messages they have in hand. Once they hold none of its lanes any more, or
-- were not seen for the lease, a call removes the group with all that belongs to it: the rest of earlier subscriptions,
-- and its scopes of this topic. `held` is the number of lanes that are still held. With force the group is removed
-- nevertheless: processes still handle the messages they have in hand, but cannot settle them. If a transaction is just
-- settling in a lane, the call waits for two seconds.
create function postbus.remove_group(
    topic text,
    group_name text,
    force boolean default false,
    out removed boolean,
    out held bigint
) returns record;

-- The id from which on a group wants messages: the start that subscribe or seek has set last, or that of a catch-up
-- that left older messages out. Null: it wants all. Messages of transactions that were open just then may have lower
-- ids.
create function postbus.first_wanted(subscription_id bigint) returns bigint;

-- Returns what happened to groups, for the caller to log. Each event goes to one caller.
create function postbus.take_group_events() returns table(name text, topic text, group_name text, fields jsonb);

-- deferred: functions and views

-- The messages of lanes that their holder must not handle when it reads them from the log: deferred messages and, if
-- asked for, settled ones (is_done). The holder will still read those that are `ahead`.
create function postbus.deferred_of(
    tokens uuid[],
    with_settled boolean default true
) returns table (
    subscription_id bigint,
    lane integer,
    id bigint,
    key text,
    is_done boolean,
    ahead boolean
);

-- Extends the leases of deferred messages that the holder of lanes has in hand, by the topic's lease from now.
create function postbus.extend_deferred(tokens uuid[], ids bigint[]) returns void;

-- Claims due deferred messages of lanes for the lanes' holder: see claim_deferred_as_of.
create function postbus.claim_deferred(
    tokens uuid[],
    max_count integer,
    is_alone boolean default false
) returns setof postbus.deferred;

-- Defers messages that a group has read from the log, so that its cursor can pass them: to be retried ('retry'), parked
-- behind another message of their key ('park'), tried at once because the attempt does not count ('release'), tried
-- alone ('suspect'), or given up ('dead'). The lane's token proves the caller's right. The caller names the messages,
-- by ids and sequences; their contents are read from the log.
create function postbus.defer(
    subscription_id bigint,
    lane integer,
    token uuid,
    kinds text[],
    ids bigint[],
    sequences bigint[],
    delays interval[],
    errors text[],
    reasons text[],
    max_attempts integer default null::integer
) returns text[];

-- Settles deferred messages that the holder of a lane has in hand: 'done', 'retry', 'dead', or 'release', which does
-- not count the attempt. The next message of the key of each message that has ended is due at once. Returns for each
-- message 'done', 'retried', 'dead', 'released' or 'lost'.
create function postbus.settle_deferred(
    subscription_id bigint,
    lane integer,
    token uuid,
    ids bigint[],
    outcome text,
    delay interval default null::interval,
    error text default null::text,
    reason text default null::text,
    max_attempts integer default null::integer
) returns text[];

-- pull: functions and views

-- Leases up to max_count messages of a queue, or of a PUB_SUB topic for a group, to `member`. They are settled by ack,
-- retry, dead_letter or release, with the token. With auto_ack they are settled at once: each is delivered at most
-- once.
create function postbus.pop(
    topic text,
    group_name text default null::text,
    member text default 'somebody'::text,
    max_count integer default 1,
    lease interval default null::interval,
    key text default null::text,
    auto_ack boolean default false,
    scan_floor text default null::text,
    max_bytes bigint default 16777216
) returns setof postbus.popped;

-- Leases up to max_count messages for a group from the topics of a namespace, of a task, or with names that fit a
-- pattern: from the topic in which a message waits longest. See pop, and subscribe_scope, which has to be called first.
create function postbus.pop_scope(
    group_name text,
    namespace text default null::text,
    task text default null::text,
    pattern text default null::text,
    member text default 'somebody'::text,
    max_count integer default 1,
    lease interval default null::interval,
    auto_ack boolean default false,
    max_bytes bigint default 16777216
) returns setof postbus.popped;

-- scopes: functions and views

-- The regular expression for a pattern, which matches a name followed by a dot if the pattern fits the name: * is one
-- word, # any number of words or none. Other words stand for themselves: they have no characters with a meaning in
-- regular expressions.
create function postbus.pattern_regex(pattern text) returns text;

-- Whether a topic is in a scope.
create function postbus.in_scope(scope postbus.scope, topic postbus.topic) returns boolean;

-- Subscribes a group to a scope: to all topics in it, and to those that match it later. The first call records the
-- group's start. Later calls change on_failure and catch_up if they give them, bring DEAD subscriptions back, and join
-- topics that the group has not joined yet. Returns the group's subscriptions in the scope. Has to be called in a
-- transaction of its own.
create function postbus.subscribe_scope(
    group_name text,
    topic text default null::text,
    key text default null::text,
    namespace text default null::text,
    task text default null::text,
    pattern text default null::text,
    mode text default 'all'::text,
    start_at timestamp with time zone default null::timestamp with time zone,
    look_back interval default '00:00:04'::interval,
    on_failure text default null::text,
    catch_up jsonb default null::jsonb,
    start_id bigint default null::bigint
) returns table (
    topic_name text,
    subscription_id bigint,
    state text,
    is_new boolean,
    lease interval,
    heartbeat interval,
    max_attempts integer,
    lanes integer,
    keys text[],
    missed bigint,
    skipped bigint
);

-- The topics in a scope to which a group is subscribed and ACTIVE. Records nothing and joins nothing: see
-- subscribe_scope.
create function postbus.group_topics(
    group_name text,
    topic text default null::text,
    key text default null::text,
    namespace text default null::text,
    task text default null::text,
    pattern text default null::text
) returns table (
    topic_name text,
    subscription_id bigint,
    keys text[]
);

-- The topics in scopes of groups, one scope for each index of the arrays, that the caller does not know: with the
-- group's subscription, or without one if the group has not joined yet, in which case subscribe_scope has to be called.
-- CANCELLED subscriptions are left out. Only reads, for all scopes of a process, since it is called again and again.
create function postbus.scope_news(
    group_names text[],
    topics text[],
    keys text[],
    namespaces text[],
    tasks text[],
    patterns text[],
    known bigint[]
) returns table (
    scope integer,
    topic_name text,
    subscription_id bigint,
    lease interval,
    heartbeat interval,
    max_attempts integer,
    lanes integer,
    is_limited boolean
);

-- The keys whose messages a subscription wants; null: all.
create function postbus.keys_of(subscription_id bigint) returns text[];

-- Pauses or resumes a group in all topics of a scope: ACTIVE becomes PAUSED, or PAUSED becomes ACTIVE; other states
-- stay. Returns how many subscriptions have the new state.
create function postbus.set_scope_state(
    group_name text,
    state text,
    topic text default null::text,
    key text default null::text,
    namespace text default null::text,
    task text default null::text,
    pattern text default null::text
) returns bigint;

-- Forgets a group's record of a scope: the group joins no further topics by it, and a later subscription is recorded
-- anew. Existing subscriptions stay; with `cancel` they are CANCELLED. Returns the number of subscriptions in the
-- scope.
create function postbus.forget_scope(
    group_name text,
    topic text default null::text,
    key text default null::text,
    namespace text default null::text,
    task text default null::text,
    pattern text default null::text,
    cancel boolean default false
) returns bigint;

-- liveness: functions and views

-- How old the last heartbeat of a process may be for the process to count as alive. Processes send a heartbeat every 10
-- seconds at least. So a killed process counts for at most 25 seconds, and a process that lost two heartbeats still
-- counts.
create function postbus.alive_for() returns interval;

-- Notes that a process is alive, and which topics it consumes. With its first heartbeat a process may give a secret, a
-- random number. From then on only callers that give the secret can call in its name.
create function postbus.heartbeat(
    name text,
    host text,
    pid integer,
    topics text[],
    secret uuid default null::uuid
) returns void;

-- Notes that a process has stopped. The caller gives the secret of its heartbeats.
create function postbus.sign_off(name text, secret uuid default null::uuid) returns void;

-- Brings DEAD groups back to life, and notes that in the audit log: see bring_back. Has to be called in a transaction
-- of its own.
create function postbus.resurrect(
    subscription_ids bigint[],
    with_catch_up boolean default true,
    catch_up jsonb default null::jsonb
) returns table (
    subscription_id bigint,
    missed bigint,
    skipped bigint,
    catch_up_id bigint,
    "position" text
);

-- Brings a DEAD group back: it goes on from its position, within the limits of its catch-up. Returns no row if the
-- group is not DEAD. Has to be called in a transaction of its own.
create function postbus.resurrect_group(topic text, group_name text) returns table(missed bigint, skipped bigint);

-- Notes that groups have a process that consumes for them, in one statement for all of them. Counters of members are
-- added up; negative ones are refused. A DEAD group comes back: the result says how many messages it missed, see
-- bring_back.
create function postbus.group_heartbeat(
    subscription_ids bigint[],
    member_of bigint[],
    members text[],
    processed bigint[],
    failed bigint[],
    filtered bigint[],
    in_flight bigint[],
    handling_seconds double precision[]
) returns table (
    subscription_id bigint,
    missed bigint,
    skipped bigint,
    catch_up_id bigint
);

-- Notes that a group lives, for pulling consumers that neither pop, settle nor extend a lease for a while: in the
-- topic, or in all topics of the namespace, of the task, or with names that fit the pattern, that the group is
-- subscribed to. In topics where it is DEAD, it comes back. Has to be called in a transaction of its own.
create function postbus.send_heartbeat(
    group_name text,
    topic text default null::text,
    namespace text default null::text,
    task text default null::text,
    pattern text default null::text,
    stopped_by text default null::text
) returns table (
    topic_name text,
    state text,
    missed bigint,
    skipped bigint
);

-- Notes that a relay of a topic, in this process, cannot reach its sink; repeated while that is so. group_name is null
-- for a QUEUE. A row that was written with a secret is changed with that secret only.
create function postbus.note_sink_away(
    topic text,
    group_name text,
    process text,
    sink text,
    error text,
    secret uuid default null::uuid
) returns void;

-- Notes that a relay has reached its sink again, or has ended. It gives the same secret as note_sink_away.
create function postbus.forget_sink_away(
    topic text,
    group_name text,
    process text,
    secret uuid default null::uuid
) returns void;

-- How many calls for messages of a group ended well in the last five minutes, and how many failed: calls of handlers,
-- and messages that were popped and settled.
create function postbus.recent_calls(subscription_id bigint, out handled bigint, out failed bigint) returns record;

-- The limits beyond which a group of a topic is in trouble. The most specific row of health_limit decides about each
-- value: that of topic and group, of the group, of the topic, of all; then the defaults: half of the calls, and 24
-- hours.
create function postbus.health_limits(
    topic text default ''::text,
    group_name text default ''::text,
    out failed_share double precision,
    out lag double precision,
    out lag_seconds double precision,
    out stopped_seconds double precision
) returns record;

-- Sets the limits beyond which groups are in trouble: all groups, those of a topic, a group on all topics, or a group
-- on one topic. Options that are left out stay as they are. 'off': no limit; null: the next less specific limit. See
-- health_limits.
create function postbus.set_health_limits(
    options jsonb,
    topic text default null::text,
    group_name text default null::text
) returns void;

-- catch_up: functions and views

-- Cancels the catch-up of a group, or resumes a cancelled one from its position, with the messages that are still
-- retained. The group itself goes on meanwhile, and processes finish the messages they have in hand. Returns the
-- catch-up's subscription.
create function postbus.set_catch_up(topic text, group_name text, is_wanted boolean) returns bigint;

-- Resumes a cancelled catch-up from its position, with the messages that are still retained. Returns its subscription.
create function postbus.resume_catch_up(topic text, group_name text) returns bigint;

-- Notes the rate that a process allows a catch-up, and how long its statements take. The token of one of its lanes
-- proves that the caller consumes for it.
create function postbus.report_catch_up(token uuid, allowed_rate double precision, p95 interval) returns void;

-- sweep: functions and views

-- The settings of sweeping, for all processes. heartbeat_timeout is the default of new topics.
create function postbus.sweeping(
    out "interval" interval,
    out batch_size integer,
    out detection_interval interval,
    out heartbeat_timeout interval,
    out subscription_retention interval,
    out audit_retention interval
) returns record;

-- Sets how sweeping is done, for all processes: a preset and options. Options that are left out stay as they are.
create function postbus.set_sweeping(options jsonb) returns void;

-- Notes that a job has failed, in a transaction of its own, since the job's was rolled back. Refuses jobs that do not
-- exist.
create function postbus.note_failure(job text, storage_id integer, error text) returns void;

-- Notes that a process sweeps and consumes nothing. Processes that consume call `heartbeat`, which explains the secret.
create function postbus.note_sweeper(name text, host text, pid integer, secret uuid default null::uuid) returns void;

-- Notes that a process no longer sweeps. The caller gives the same secret as to note_sweeper.
create function postbus.forget_sweeper(name text, secret uuid default null::uuid) returns void;

-- Removes what is no longer needed: see sweep_as_of.
create function postbus.sweep(
    max_count integer default null::integer,
    if_due boolean default false,
    out finished_rows bigint,
    out dedup_keys bigint,
    out inbox_records bigint,
    out workers bigint,
    out more boolean
) returns record;

-- Removes subscriptions that ended or died long ago: see sweep_subscriptions_as_of.
create function postbus.sweep_subscriptions(if_due boolean default false) returns bigint;

-- Maintains one log storage, a step at a time: see sweep_log_as_of.
create function postbus.sweep_log(
    storage_id integer,
    if_due boolean default false,
    out counted bigint,
    out opened integer,
    out dropped text[],
    out folded bigint,
    out dead bigint,
    out more boolean,
    out thinned bigint
) returns record;

-- Whether sweeping keeps up, and if not, why: see sweep_health_as_of.
create function postbus.sweep_health(
    max_backlog bigint default 1000000,
    out healthy boolean,
    out reason text,
    out backlog bigint,
    out finished_rows bigint,
    out finished_messages bigint,
    out partitions bigint,
    out partition_messages bigint,
    out published_rate double precision,
    out swept_rate double precision,
    out processes bigint
) returns record;

-- inbox: functions and views

-- Whether a consumer gets this message for the first time within the window. If so, that is noted in the caller's
-- transaction: effects that commit with it happen once, however often the message is delivered.
create function postbus.inbox_once(
    consumer text,
    message_id text,
    keep interval default '720:00:00'::interval
) returns boolean;

-- inbox_once for many messages: an answer for each, in the given order. If an id is given twice, the first one counts.
create function postbus.inbox_once_many(
    consumer text,
    message_ids text[],
    keep interval default '720:00:00'::interval
) returns boolean[];

-- Forgets that a consumer has had a message, so that its next delivery has its effect again. Returns whether it was
-- known.
create function postbus.inbox_forget(consumer text, message_id text) returns boolean;

-- import: functions and views

-- Imports messages of another outbox into a topic, in the given order, and marks them in the same transaction. Messages
-- that are marked already are left out. Returns the others, each with its new id, or with the problem because of which
-- it was not imported. Such a message is not marked, so the next import tries it again.
create function postbus.import_messages(
    source text,
    topic text,
    source_ids text[],
    payloads bytea[],
    content_type text,
    keys text[],
    headers jsonb[],
    correlation_ids text[],
    published_ats timestamp with time zone[],
    attempts integer[],
    errors text[],
    to_log boolean default true
) returns table (
    source_id text,
    message_id bigint,
    problem text,
    is_dead boolean
);

-- Subscribes a group of another outbox, from now on. It gets messages that were imported before only by import_deferred
-- in the same transaction. Refuses a group that is subscribed already, since its position is not that of the import.
-- Has to be called at the beginning of a transaction.
create function postbus.import_group(source text, topic text, group_name text, state text) returns void;

-- Gives a group imported messages that are not ahead of it in the log, with the attempts that they had. They are due
-- now, one after the other if they have a key. Messages that were tried as often as the topic allows become dead
-- letters of the group. Returns the number of these dead letters.
create function postbus.import_deferred(
    source text,
    topic text,
    group_name text,
    source_ids text[],
    payloads bytea[],
    content_type text,
    keys text[],
    headers jsonb[],
    correlation_ids text[],
    published_ats timestamp with time zone[],
    attempts integer[],
    errors text[]
) returns bigint;

-- Marks messages of another outbox that no group needs any more. If that outbox only knows how far a group has come, a
-- message that is not marked was not there when its groups were imported, and so is new to them.
create function postbus.import_seen(source text, source_ids text[]) returns void;

-- access: functions and views

-- The name of a role of this database, such as postbus_consumer_shop. Roles belong to the whole server, so they carry
-- the database's name. A name that would be too long ends with a hash.
create function postbus.role_name(role text, database text default current_database()) returns text;

-- The roles of this database: the name of each, whether it exists, and whether `postbus migrate` has given it its
-- rights.
create function postbus.roles() returns table(role text, name text, is_there boolean, has_rights boolean);

-- Lets a role publish to, consume from, or read some topics without being a member of a role of Postbus: by the
-- functions and views of the schema postbus_topics. pattern is a name in which * stands for any text; action is
-- publish, consume or read. Granting twice changes nothing.
create function postbus.grant_topic(role text, pattern text, action text) returns void;

-- Takes back grants of grant_topic: this pattern, as it was given, and this action; null stands for all. Returns the
-- number of these grants. A lease that the role has can still be settled.
create function postbus.revoke_topic(
    role text,
    pattern text default null::text,
    action text default null::text
) returns integer;

-- Adds a token for the HTTP server; only its hash is given. Roles are those of the database, without postbus_. The
-- roles consumer and admin include payloads, so a token without payloads cannot have them. created_by is the login,
-- with the actor that it names: see note_action.
create function postbus.create_token(
    id text,
    hash bytea,
    name text,
    roles text[],
    topics text[] default '{*}'::text[],
    expires_in interval default null::interval,
    groups text[] default '{*}'::text[],
    payloads boolean default true
) returns timestamp with time zone;

-- Revokes a token for good. Revoking twice changes nothing; a token that does not exist is refused.
create function postbus.revoke_token(id text) returns timestamp with time zone;

-- The rights of a token of the HTTP server. No row if the token is unknown, revoked or expired.
create function postbus.check_token(
    id text,
    hash bytea
) returns table (
    name text,
    roles text[],
    topics text[],
    groups text[],
    payloads boolean,
    remaining interval
);

-- Notes that tokens of the HTTP server were used just now. Their hashes prove that the caller knows them. A token that
-- was noted within the last half minute stays as it is, so that many servers write no more than one does.
create function postbus.note_token_uses(ids text[], hashes bytea[]) returns void;

-- admin: functions and views

-- Publishes dead letters of a topic again, to the queue or to their group alone, with their attempts at zero. Those of
-- a queue that became PUB_SUB go to the group that is named. Takes those with the given ids, or those that match the
-- filters, the oldest first. Returns their number; with dry_run it only counts them.
create function postbus.redrive(
    topic text,
    ids bigint[] default null::bigint[],
    reason_like text default null::text,
    died_after timestamp with time zone default null::timestamp with time zone,
    died_before timestamp with time zone default null::timestamp with time zone,
    key text default null::text,
    max_count integer default null::integer,
    rate double precision default null::double precision,
    dry_run boolean default false,
    group_name text default null::text
) returns bigint;

-- Deletes dead letters of a topic for good: those with the given ids, those that died before a time, or all; of one
-- group, if one is named. Returns their number; with dry_run it only counts them.
create function postbus.purge_dead_letters(
    topic text,
    ids bigint[] default null::bigint[],
    died_before timestamp with time zone default null::timestamp with time zone,
    dry_run boolean default false,
    group_name text default null::text
) returns bigint;

-- Makes the cursors of a database that was restored into another server work there. Each group gets the messages that
-- it had not seen. It may get messages again that it had seen out of the order of sequences, or that its other lanes
-- had passed. Returns the number of moved cursors. All segments are rewritten, and publishers wait meanwhile. Has to be
-- called in a transaction of its own.
create function postbus.rebase(as_copy boolean default false) returns bigint;

-- Adds a webhook: the HTTP servers send it the messages of a group or a queue.
create function postbus.create_webhook(
    name text,
    topic text,
    url text,
    secret text,
    group_name text default null::text,
    concurrency integer default 4,
    timeout interval default '00:00:10'::interval,
    enabled boolean default true
) returns void;

-- Changes a webhook: fields that are null stay as they are.
create function postbus.set_webhook(
    name text,
    url text default null::text,
    secret text default null::text,
    concurrency integer default null::integer,
    timeout interval default null::interval,
    enabled boolean default null::boolean
) returns void;

-- Removes a webhook. Its group stays, with its position.
create function postbus.delete_webhook(name text) returns void;

-- The webhooks that are enabled, with their secrets, for the HTTP servers.
create function postbus.webhooks_to_run() returns setof postbus.webhook;

-- views: functions and views

-- The statuses of all messages of a topic at each of its groups: see delivery_statuses. Begins like states_of_topic. A
-- function for what they share would have to store all segments and facts of the topic once more, for its result.
create function postbus.delivery_statuses_of_topic(
    topic_id bigint
) returns table (
    sequence bigint,
    first_index integer,
    last_index integer,
    group_name text,
    subscription_id bigint,
    status text,
    required boolean,
    is_before boolean,
    waits boolean
);

-- The states of all messages of a topic: see states. Messages of a topic that never had a group are PENDING, and not
-- wanted. Begins like delivery_statuses_of_topic, which says why the two share no function.
create function postbus.states_of_topic(
    topic_id bigint
) returns table (
    sequence bigint,
    first_index integer,
    last_index integer,
    required text[],
    completed text[],
    status text,
    wanted boolean
);

-- The same as `delivery`, for views.
create function postbus.delivery_at(
    topic_id bigint,
    segment postbus.segment_ref,
    index integer,
    group_name text,
    status text,
    is_before boolean,
    out settled_at timestamp with time zone,
    out worker text,
    out attempts integer,
    out last_error text,
    out holder text
) returns record;

-- When a message was settled by the last of the groups that were required for it. Null while it is PENDING or
-- PROCESSING, and without receipts.
create function postbus.settled_at(
    topic_id bigint,
    segment postbus.segment_ref,
    index integer,
    required text[],
    completed text[],
    status text
) returns timestamp with time zone;

-- The deliveries of one message of the log to all groups, including groups that have ended: see delivery_statuses and
-- delivery.
create function postbus.deliveries_of(
    topic text,
    id bigint
) returns table (
    subscription_id bigint,
    group_name text,
    required boolean,
    status text,
    settled_at timestamp with time zone,
    worker text,
    attempts integer,
    last_error text,
    holder text
);

-- The groups that are required for a message of the log, those that have completed it, and its status: see states.
create function postbus.message_state(
    topic text,
    id bigint,
    out required text[],
    out completed text[],
    out status text,
    out settled_at timestamp with time zone
) returns record;

-- A payload as jsonb if it is JSON that jsonb can hold, otherwise null.
create function postbus.payload_json(payload bytea, content_type text) returns jsonb;

-- Every message of a queue that Postbus still has, and every dead letter, one row each, with its state. Filter by
-- topic_id (postbus.topic_id(name)), which has indexes; a filter by topic reads the messages of all topics.
create view postbus.messages (
    topic text,
    id bigint,
    state text,
    key text,
    priority smallint,
    attempts integer,
    published_at timestamp with time zone,
    at timestamp with time zone,
    member text,
    last_error text,
    correlation_id text,
    content_type text,
    headers jsonb,
    payload_json jsonb,
    payload bytea,
    group_name text,
    event_id text,
    topic_id bigint
);

-- The dead letters, with the reason. Filter by topic_id (postbus.topic_id(name)), which has an index.
create view postbus.dead_letters (
    topic text,
    group_name text,
    id bigint,
    died_at timestamp with time zone,
    reason text,
    last_error text,
    attempts integer,
    key text,
    priority smallint,
    published_at timestamp with time zone,
    correlation_id text,
    content_type text,
    headers jsonb,
    payload_json jsonb,
    payload bytea,
    event_id text,
    topic_id bigint
);

-- Every topic that was created or used, with its options and the numbers of its messages. Columns that are not selected
-- are not counted: a join on true, of one row, is left out then.
create view postbus.topics (
    name text,
    semantics text,
    ordered boolean,
    paused_at timestamp with time zone,
    lease interval,
    max_attempts integer,
    retry_initial interval,
    retry_factor double precision,
    retry_max interval,
    retry_jitter double precision,
    retention interval,
    dedup_window interval,
    max_payload_bytes integer,
    notify boolean,
    configured boolean,
    created_at timestamp with time zone,
    tracking text,
    lanes integer,
    storage text,
    segment_size integer,
    zero_subscription_retention interval,
    block_writes_on_zero_subscriptions boolean,
    max_retention interval,
    zombie_time interval,
    heartbeat_interval interval,
    heartbeat_timeout interval,
    published bigint,
    groups bigint,
    waiting bigint,
    delayed bigint,
    leased bigint,
    dead bigint,
    oldest_at timestamp with time zone,
    named_lanes boolean,
    namespace text,
    task text,
    dead_retention interval,
    topic_id bigint
);

-- The processes that consume, and the time since the last heartbeat of each. is_alive: see alive_for.
create view postbus.workers (
    name text,
    host text,
    pid integer,
    topics text[],
    started_at timestamp with time zone,
    seen_at timestamp with time zone,
    silent_for interval,
    is_alive boolean
);

-- Every message of the log on its own row, as it was published.
create view postbus.log (
    topic text,
    id bigint,
    lane integer,
    sequence bigint,
    index integer,
    published_at timestamp with time zone,
    key text,
    correlation_id text,
    content_type text,
    headers jsonb,
    payload_json jsonb,
    payload bytea,
    txid xid8,
    topic_id bigint,
    segment_count integer,
    event_id text
);

-- One message of the log, by its id. Refuses a message that is not there.
create function postbus.log_message(topic text, id bigint) returns setof postbus.log;

-- A page of the log of a topic, in the order of the log: up to max_count messages after a position; or with newest
-- those before it, the last one first. The page ends when payloads, keys and headers together exceed max_bytes, but has
-- at least one message. A row of nulls at the end says that there are more.
create function postbus.log_page(
    topic text,
    from_sequence bigint,
    from_index integer,
    max_count integer,
    max_bytes bigint,
    newest boolean default false,
    payloads boolean default true,
    after_id bigint default 0,
    out id bigint,
    out lane integer,
    out sequence bigint,
    out index integer,
    out published_at timestamp with time zone,
    out key text,
    out correlation_id text,
    out content_type text,
    out headers jsonb,
    out payload bytea,
    out event_id text
) returns setof record;

-- The copies of one message of the log that groups have as deferred messages and dead letters, even if the log has
-- dropped the message. The columns from status on are those of delivery.
create function postbus.copies_of(
    topic text,
    id bigint
) returns table (
    published_at timestamp with time zone,
    key text,
    correlation_id text,
    content_type text,
    headers jsonb,
    payload bytea,
    subscription_id bigint,
    group_name text,
    status text,
    settled_at timestamp with time zone,
    attempts integer,
    last_error text,
    holder text
);

-- History that groups work through, or have worked through. rate is that of the last ten seconds, in messages per
-- second; eta is when it ends at that rate.
create view postbus.catch_ups (
    topic text,
    group_name text,
    group_subscription_id bigint,
    subscription_id bigint,
    reason text,
    status text,
    total bigint,
    processed bigint,
    skipped bigint,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    rate double precision,
    eta timestamp with time zone,
    allowed_rate double precision,
    p95 interval
);

-- The history that a group works through, or the last one that it has worked through.
create function postbus.last_catch_up(
    subscription_id bigint,
    out status text,
    out total bigint,
    out processed bigint,
    out started_at timestamp with time zone,
    out ended_at timestamp with time zone
) returns record;

-- Sinks that relays of living processes cannot reach: since when, and the last error.
create view postbus.sinks_away (
    topic text,
    group_name text,
    process text,
    sink text,
    since timestamp with time zone,
    told_at timestamp with time zone,
    error text
);

-- Every subscription of a group to a topic, with its progress and its lag. The sweep counts published messages, so lag
-- may be some seconds late; lag_seconds is the age of the oldest message ahead of the group. pending is the number of
-- all messages left to do: ahead of the group, in its history, and deferred.
create view postbus.groups (
    topic text,
    group_name text,
    subscription_id bigint,
    state text,
    start text,
    start_at timestamp with time zone,
    start_id bigint,
    on_failure text,
    subscribed_at timestamp with time zone,
    state_changed_at timestamp with time zone,
    seen_at timestamp with time zone,
    lanes integer,
    lanes_held bigint,
    workers text[],
    progressed_at timestamp with time zone,
    processed bigint,
    failed bigint,
    filtered bigint,
    in_flight bigint,
    members text[],
    passed bigint,
    retrying bigint,
    parked bigint,
    dead bigint,
    lost bigint,
    lag bigint,
    lag_seconds numeric,
    heartbeat_timeout interval,
    heartbeat_age double precision,
    heartbeats_missed integer,
    catch_up text,
    catch_up_lag bigint,
    pending bigint,
    oldest_pending_at timestamp with time zone,
    healthy boolean,
    problem text,
    waits_for_queue boolean,
    keys text[],
    scope_id bigint,
    stopped_at timestamp with time zone,
    stopped_by text,
    lost_at timestamp with time zone,
    recently_handled bigint,
    recently_failed bigint,
    problem_kind text,
    sink text,
    sink_away_since timestamp with time zone,
    sink_error text
);

-- The counters of each member of a group; handling_ms is the average time that its handler takes for a message.
create view postbus.members (
    topic text,
    group_name text,
    name text,
    processed bigint,
    failed bigint,
    filtered bigint,
    in_flight bigint,
    seen_at timestamp with time zone,
    handling_ms double precision
);

-- The counters and the speed of a group. handling_ms is the average time that a handler takes for a message; rate is
-- that of the last minute, in messages per second, computed from the ledger: see current_cursor.
create function postbus.group_metrics(
    topic text,
    group_name text,
    out processed bigint,
    out failed bigint,
    out filtered bigint,
    out in_flight bigint,
    out handling_ms double precision,
    out rate double precision,
    out lag bigint,
    out pending bigint,
    out oldest_pending_at timestamp with time zone
) returns record;

-- ACTIVE groups without a heartbeat for a share of their heartbeat timeout: there is still time to look after them.
create function postbus.groups_near_timeout(
    share double precision default 0.8
) returns table (
    topic text,
    group_name text,
    heartbeat_age interval,
    heartbeat_timeout interval
);

-- The scopes that groups have subscribed to, and the start of the groups in topics that match later: see the table
-- scope.
create view postbus.scopes (
    group_name text,
    topic text,
    key text,
    namespace text,
    task text,
    pattern text,
    mode text,
    start_at timestamp with time zone,
    recorded_at timestamp with time zone,
    on_failure text,
    catch_up jsonb,
    topics text[],
    start_id bigint
);

-- The deliveries of every message of the log to every group, one row each: see delivery_statuses and delivery. Takes
-- time for all messages of a topic, whatever is selected: use deliveries_of for one message.
create view postbus.deliveries (
    topic text,
    id bigint,
    published_at timestamp with time zone,
    key text,
    subscription_id bigint,
    group_name text,
    required boolean,
    status text,
    settled_at timestamp with time zone,
    worker text,
    attempts integer,
    last_error text,
    holder text
);

-- Every message of the log with the groups that are required for it, those that have completed it, and its status: see
-- states.
create view postbus.message_states (
    topic text,
    id bigint,
    published_at timestamp with time zone,
    key text,
    correlation_id text,
    content_type text,
    headers jsonb,
    payload_json jsonb,
    payload bytea,
    required text[],
    completed text[],
    status text,
    settled_at timestamp with time zone
);

-- Topics that have messages which were published longer ago than older_than, and which a live group has not settled,
-- though it was subscribed all that time. Cheap: computed from the lag and the oldest message of each group. So
-- `messages` counts all messages ahead of the group that is furthest behind, younger ones included, and its deferred
-- messages.
create function postbus.stuck_messages(
    older_than interval default '01:00:00'::interval
) returns table (
    topic text,
    groups text[],
    messages bigint,
    oldest_at timestamp with time zone
);

-- Topics that have messages which no group was ever required for, or has settled. These are removed when their
-- retention is over. Counts them, which takes time for all segments, except in topics that keep nothing from before the
-- start of a live group.
create function postbus.zero_subscription_messages() returns table (
    topic text,
    messages bigint,
    oldest_at timestamp with time zone
);

-- Rows of groups that do not fit together, each with an explanation. There should never be any.
create function postbus.inconsistencies() returns table (
    kind text,
    topic text,
    group_name text,
    subscription_id bigint,
    explanation text
);

-- The runs of each job of sweeping, in all processes. Runs that found nothing to do are noted once per interval only.
-- removed counts, for return_expired, returned messages; for sweep, finished rows, deduplication keys and inbox
-- records; for sweep_log, rows of the ledger; for detect_dead, groups; for drop_partitions, messages; for
-- subscriptions, subscriptions.
create view postbus.sweep_jobs (
    job text,
    runs bigint,
    started_at timestamp with time zone,
    took interval,
    removed bigint,
    removed_total bigint,
    failed_at timestamp with time zone,
    error text
);

-- The tokens of the HTTP server, with their creators and last uses, and whether they are valid.
create view postbus.tokens (
    id text,
    name text,
    roles text[],
    topics text[],
    created_at timestamp with time zone,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    state text,
    groups text[],
    payloads boolean,
    created_by text,
    last_used_at timestamp with time zone
);

-- The webhooks, without their secrets.
create view postbus.webhooks (
    name text,
    topic text,
    group_name text,
    url text,
    concurrency integer,
    timeout interval,
    enabled boolean,
    created_at timestamp with time zone,
    changed_at timestamp with time zone
);

-- The audit log: each action with its login, its object and its changes. Only callers that may read tokens see actions
-- on tokens, webhooks and grants, and the addresses from which people act.
create view postbus.audit (
    id bigint,
    at timestamp with time zone,
    login text,
    role text,
    actor text,
    program text,
    address inet,
    action text,
    topic text,
    group_name text,
    target text,
    affected bigint,
    given jsonb,
    before jsonb,
    after jsonb
);

-- The grants of grant_topic. is_there is false for a role that was dropped: its grants give nothing.
create view postbus.topic_grants (
    role text,
    pattern text,
    action text,
    granted_by text,
    granted_at timestamp with time zone,
    is_there boolean
);

-- views/postbus_outbox: functions and views

-- Every message, with the columns of a fan-out outbox. Messages of queues need one group; those of PUB_SUB topics the
-- groups that are required for them: see states. If all of these have died or ended before they had settled the
-- message, no group is required any more: then required_consumer_groups is null. It is 0 if no group ever was.
create view postbus_outbox.outbox (
    id bigint,
    topic text,
    payload jsonb,
    headers jsonb,
    correlation_id text,
    message_group text,
    priority integer,
    created_at timestamp with time zone,
    processed_at timestamp with time zone,
    status text,
    required_consumer_groups integer,
    completed_consumer_groups integer,
    retry_count integer,
    error_message text
);

-- The status of each message of the log at each group, with the columns of a fan-out outbox; groups that have ended
-- included. There is a row once the group has begun with the message: PENDING while it waits for its turn, or is in
-- hand; then COMPLETED or FAILED. A message that failed and is to be retried is FAILED too, and has no processed_at
-- yet. A message that waited when its group ended stays as it was.
create view postbus_outbox.outbox_consumer_groups (
    id bigint,
    message_id bigint,
    topic text,
    group_name text,
    status text,
    processed_at timestamp with time zone,
    error_message text,
    retry_count integer
);

-- The topics, with the columns of a fan-out outbox. A retention of less than an hour, or of hours and minutes, is
-- rounded up.
create view postbus_outbox.outbox_topics (
    topic text,
    semantics text,
    message_retention_hours integer,
    zero_subscription_retention_hours integer,
    block_writes_on_zero_subscriptions boolean,
    completion_tracking_mode text,
    created_at timestamp with time zone
);

-- The newest subscription of each group to each topic, with the columns of a fan-out outbox. The columns backfill_...
-- are about its last catch-up. Columns that take longer are computed once for each subscription, and only if they are
-- selected (hence the offsets).
create view postbus_outbox.outbox_topic_subscriptions (
    id bigint,
    topic text,
    group_name text,
    subscription_status text,
    subscribed_at timestamp with time zone,
    last_active_at timestamp with time zone,
    start_from_message_id bigint,
    start_from_timestamp timestamp with time zone,
    heartbeat_interval_seconds integer,
    heartbeat_timeout_seconds integer,
    last_heartbeat_at timestamp with time zone,
    consecutive_failures integer,
    backfill_status text,
    backfill_total_messages bigint,
    backfill_processed_messages bigint,
    backfill_started_at timestamp with time zone,
    backfill_completed_at timestamp with time zone,
    backfill_error_message text
);

-- Removes messages that all groups are done with and whose retention is over, as consuming processes do. Returns the
-- number of removed messages of the log, plus the rows of finished messages of queues.
create function postbus_outbox.cleanup_completed_outbox_messages() returns bigint;

-- access/postbus_topics: functions and views

-- Publishes one message to a topic that the caller was granted: see postbus.publish(text, bytea, ...).
create function postbus_topics.publish(
    topic text,
    payload bytea,
    key text default null::text,
    headers jsonb default null::jsonb,
    priority integer default 4,
    delay interval default null::interval,
    deliver_at timestamp with time zone default null::timestamp with time zone,
    dedup_key text default null::text,
    correlation_id text default null::text,
    content_type text default 'application/octet-stream'::text
) returns bigint;
create function postbus_topics.publish(
    topic text,
    payload jsonb,
    key text default null::text,
    headers jsonb default null::jsonb,
    priority integer default 4,
    delay interval default null::interval,
    deliver_at timestamp with time zone default null::timestamp with time zone,
    dedup_key text default null::text,
    correlation_id text default null::text
) returns bigint;
create function postbus_topics.publish(
    topic text,
    payload text,
    key text default null::text,
    headers jsonb default null::jsonb,
    priority integer default 4,
    delay interval default null::interval,
    deliver_at timestamp with time zone default null::timestamp with time zone,
    dedup_key text default null::text,
    correlation_id text default null::text
) returns bigint;

-- Publishes many JSON values to a topic that the caller was granted: see postbus.publish_many(text, jsonb[], ...).
create function postbus_topics.publish_many(
    topic text,
    payloads jsonb[],
    keys text[] default null::text[],
    headers jsonb[] default null::jsonb[],
    priorities integer[] default null::integer[],
    delays interval[] default null::interval[],
    deliver_ats timestamp with time zone[] default null::timestamp with time zone[],
    dedup_keys text[] default null::text[],
    correlation_ids text[] default null::text[]
) returns bigint[];

-- Subscribes a group to a topic that the caller was granted: see postbus.subscribe. A subscribed group stays as it is.
create function postbus_topics.subscribe(
    topic text,
    group_name text,
    start text default 'FROM_NOW'::text,
    start_at timestamp with time zone default null::timestamp with time zone,
    start_id bigint default null::bigint
) returns void;

-- Takes messages of a topic that the caller was granted, of a queue or for a group: see postbus.pop.
create function postbus_topics.pop(
    topic text,
    group_name text default null::text,
    member text default 'somebody'::text,
    max_count integer default 1,
    lease interval default null::interval,
    key text default null::text,
    auto_ack boolean default false,
    scan_floor text default null::text
) returns setof postbus.popped;

-- Notes that a group lives, in a topic that the caller was granted: see postbus.send_heartbeat.
create function postbus_topics.send_heartbeat(topic text, group_name text) returns void;

-- Finishes messages of a lease. The random token proves the lease. See postbus.ack.
create function postbus_topics.ack(token uuid, ids bigint[]) returns bigint[];

-- Gives back messages of a lease for another attempt. The random token proves the lease. See postbus.retry.
create function postbus_topics.retry(
    token uuid,
    ids bigint[],
    delay interval default null::interval,
    error text default null::text,
    max_attempts integer default null::integer
) returns table (
    message_id bigint,
    outcome text
);

-- Gives up messages of a lease. The random token proves the lease. See postbus.dead_letter.
create function postbus_topics.dead_letter(
    token uuid,
    ids bigint[],
    reason text,
    error text default null::text
) returns bigint[];

-- Gives back messages of a lease. The random token proves the lease. See postbus.release.
create function postbus_topics.release(token uuid, ids bigint[]) returns bigint[];

-- Extends leases, which their random tokens prove: see postbus.extend.
create function postbus_topics.extend(tokens uuid[], lease interval) returns uuid[];

-- The topics that the caller may read.
create function postbus_topics.readable() returns setof text;

-- The rows of postbus.messages of the topics that the caller may read: see grant_topic. It is a security barrier, so
-- functions in conditions of the caller see no rows of other topics.
create view postbus_topics.messages (
    topic text,
    id bigint,
    state text,
    key text,
    priority smallint,
    attempts integer,
    published_at timestamp with time zone,
    at timestamp with time zone,
    member text,
    last_error text,
    correlation_id text,
    content_type text,
    headers jsonb,
    payload_json jsonb,
    payload bytea,
    group_name text,
    event_id text,
    topic_id bigint
);

-- The rows of postbus.dead_letters of the topics that the caller may read: see grant_topic. It is a security barrier,
-- so functions in conditions of the caller see no rows of other topics.
create view postbus_topics.dead_letters (
    topic text,
    group_name text,
    id bigint,
    died_at timestamp with time zone,
    reason text,
    last_error text,
    attempts integer,
    key text,
    priority smallint,
    published_at timestamp with time zone,
    correlation_id text,
    content_type text,
    headers jsonb,
    payload_json jsonb,
    payload bytea,
    event_id text,
    topic_id bigint
);

-- The rows of postbus.log of the topics that the caller may read: see grant_topic. It is a security barrier, so
-- functions in conditions of the caller see no rows of other topics.
create view postbus_topics.log (
    topic text,
    id bigint,
    lane integer,
    sequence bigint,
    index integer,
    published_at timestamp with time zone,
    key text,
    correlation_id text,
    content_type text,
    headers jsonb,
    payload_json jsonb,
    payload bytea,
    txid xid8,
    topic_id bigint,
    segment_count integer,
    event_id text
);

-- The rows of postbus.topics of the topics that the caller may read: see grant_topic. It is a security barrier, so
-- functions in conditions of the caller see no rows of other topics.
create view postbus_topics.topics (
    name text,
    semantics text,
    ordered boolean,
    paused_at timestamp with time zone,
    lease interval,
    max_attempts integer,
    retry_initial interval,
    retry_factor double precision,
    retry_max interval,
    retry_jitter double precision,
    retention interval,
    dedup_window interval,
    max_payload_bytes integer,
    notify boolean,
    configured boolean,
    created_at timestamp with time zone,
    tracking text,
    lanes integer,
    storage text,
    segment_size integer,
    zero_subscription_retention interval,
    block_writes_on_zero_subscriptions boolean,
    max_retention interval,
    zombie_time interval,
    heartbeat_interval interval,
    heartbeat_timeout interval,
    published bigint,
    groups bigint,
    waiting bigint,
    delayed bigint,
    leased bigint,
    dead bigint,
    oldest_at timestamp with time zone,
    named_lanes boolean,
    namespace text,
    task text,
    dead_retention interval,
    topic_id bigint
);

-- The rows of postbus.groups of the topics that the caller may read: see grant_topic. It is a security barrier, so
-- functions in conditions of the caller see no rows of other topics.
create view postbus_topics.groups (
    topic text,
    group_name text,
    subscription_id bigint,
    state text,
    start text,
    start_at timestamp with time zone,
    start_id bigint,
    on_failure text,
    subscribed_at timestamp with time zone,
    state_changed_at timestamp with time zone,
    seen_at timestamp with time zone,
    lanes integer,
    lanes_held bigint,
    workers text[],
    progressed_at timestamp with time zone,
    processed bigint,
    failed bigint,
    filtered bigint,
    in_flight bigint,
    members text[],
    passed bigint,
    retrying bigint,
    parked bigint,
    dead bigint,
    lost bigint,
    lag bigint,
    lag_seconds numeric,
    heartbeat_timeout interval,
    heartbeat_age double precision,
    heartbeats_missed integer,
    catch_up text,
    catch_up_lag bigint,
    pending bigint,
    oldest_pending_at timestamp with time zone,
    healthy boolean,
    problem text,
    waits_for_queue boolean,
    keys text[],
    scope_id bigint,
    stopped_at timestamp with time zone,
    stopped_by text,
    lost_at timestamp with time zone,
    recently_handled bigint,
    recently_failed bigint,
    problem_kind text,
    sink text,
    sink_away_since timestamp with time zone,
    sink_error text
);

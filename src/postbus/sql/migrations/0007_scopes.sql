-- breaking
-- Scopes: a group subscribes to a topic, to one key of it, or to all topics of a namespace, of a task, or with names that fit
-- a pattern, also to those that are created later.
alter table postbus.topic
    add column namespace text,
    add column task      text;
create index topic_namespace_idx on postbus.topic (namespace) where namespace is not null;
create index topic_task_idx on postbus.topic (task) where task is not null;

-- What a group has subscribed to, and where it starts in topics that it has no subscription for yet. Recorded once.
-- It starts with messages that were published at start_at or later (null: with all that are retained), and, unless that is
-- later than recorded_at, with all that the snapshot does not show: those that were committed after the record.
create table postbus.scope (
    id          bigint generated always as identity primary key,
    group_name  text not null,
    topic       text,
    key         text,                       -- of that topic
    namespace   text,
    task        text,
    pattern     text,
    mode        text not null,              -- new, all or timestamp
    start_at    timestamptz,
    recorded_at timestamptz not null default clock_timestamp(),
    snapshot    pg_snapshot not null,
    on_failure  text not null default 'block',
    catch_up    jsonb not null default '{}',
    check (num_nonnulls(topic, namespace, task, pattern) = 1 and (key is null or topic is not null))
);
create unique index scope_idx on postbus.scope
    (group_name, coalesce(topic, ''), coalesce(namespace, ''), coalesce(task, ''), coalesce(pattern, ''), (key is null), coalesce(key, ''));

alter table postbus.subscription
    add column keys     text[],                 -- of the messages that the group wants; null: all
    add column scope_id bigint,                 -- the record that made it
    add column started  postbus.log_cursor;     -- where it began
create index subscription_name_idx on postbus.subscription (group_name, topic_id);

-- Of segments up to since_bound only those count that are not older than since_at and since_id, or that are not visible in
-- since_snapshot.
alter type postbus.log_cursor add attribute since_snapshot pg_snapshot;
update postbus.subscription s
   set started = row(case when s.start = 'FROM_NOW' then s.subscribed else row(0, '2', '3:3:')::postbus.log_place end, null, null, null,
                     case when s.start = 'FROM_TIMESTAMP' and s.start_at <= s.subscribed_at then (s.subscribed).position
                          when s.start in ('FROM_TIMESTAMP', 'FROM_MESSAGE_ID') then 9223372036854775807 end,
                     s.start_at, s.start_id, null, null)::postbus.log_cursor
 where s.catch_up_of is null;

-- Groups that stop and die are heard of.
--
-- subscription.stopped_at, stopped_by: when the last process of a group left it cleanly, and which one that was. It holds
-- while seen_at is not later: each sign of life ends it.
-- subscription.failing_since: since when more calls have failed than health_limit allows.
-- group_event: what processes are to log; the process that deletes a row logs it, so that each is logged once.
alter table postbus.subscription
    add column stopped_at timestamptz,
    add column stopped_by text,
    add column failing_since timestamptz;
create table postbus.group_event (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    name       text not null,
    topic      text not null,
    group_name text not null,
    fields     jsonb not null
);
drop function if exists postbus.leave_groups(text, bigint[]);

-- How many calls for messages ended well, and how many failed, in the last minutes. Only inserted into, so that settlements do
-- not wait for each other; the sweep adds up the rows of a minute.
create table postbus.group_tally (
    subscription_id bigint not null,
    at              timestamptz not null,
    handled         bigint not null,
    failed          bigint not null
);
create index group_tally_at on postbus.group_tally (subscription_id, at);

-- From when on a group is in trouble. '' stands for all topics, or all groups; a value that is null is told by the less specific
-- rows, and then by the defaults (see health_limits). infinity: never.
create table postbus.health_limit (
    topic           text not null default '',
    group_name      text not null default '',
    failed_share    double precision,
    lag             double precision,
    lag_seconds     double precision,
    stopped_seconds double precision,
    primary key (topic, group_name)
);

-- Sinks that relays cannot reach: see note_sink_away. group_name is '' for a QUEUE.
create table postbus.sink_away (
    topic      text not null,
    group_name text not null,
    process    text not null,
    sink       text not null,
    error      text not null,
    since      timestamptz not null default clock_timestamp(),
    told_at    timestamptz not null default clock_timestamp(),
    primary key (topic, group_name, process)
);

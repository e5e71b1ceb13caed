-- Groups that stop and die are heard of.
--
-- subscription.stopped_at, stopped_by: when the last process of a group left it cleanly, and which one that was. It holds
-- while seen_at is not later: each sign of life ends it.
-- group_event: what processes are to log; the process that deletes a row logs it, so that each is logged once.
alter table postbus.subscription add column stopped_at timestamptz, add column stopped_by text;
create table postbus.group_event (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    name       text not null,
    topic      text not null,
    group_name text not null,
    fields     jsonb not null
);
drop function if exists postbus.leave_groups(text, bigint[]);

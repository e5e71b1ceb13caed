-- The audit log: what was done by whom. No role may touch it: entries come from note_action, and go by the sweep when they are older
-- than audit_retention. Sequences have gaps where a transaction was rolled back.
create table postbus.audit_entry (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    login      text not null,       -- the user who logged in to the database
    role       text,                -- the role that this session has taken by SET ROLE
    actor      text,                -- who acts, as the caller says: who uses a server or a command line that has the login
    program    text,                -- application_name, as the caller says
    address    inet,                -- from where; null over a Unix socket
    action     text not null,
    topic      text,
    group_name text,
    target     text,                -- what else was acted on: a token, a webhook, a scope, ...
    affected   bigint,              -- messages or rows
    given      jsonb,               -- what the caller chose them by
    before     jsonb,               -- of what was changed
    after      jsonb
);
create index audit_entry_at_idx on postbus.audit_entry (at);

alter table postbus.sweep_setting add column audit_retention interval not null default '90 days';
drop function if exists postbus.sweeping();
drop function if exists postbus.resurrect(bigint[], boolean, timestamptz, jsonb);

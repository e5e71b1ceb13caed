-- The roles that `postbus migrate` has given their rights. Another role, of the same name or not, has to be given them again.
create table postbus.role_granted (
    role text primary key,      -- producer, consumer, observer, operator or admin
    oid  oid not null
);

-- What roles may do with some topics only: see grant_topic.
create schema if not exists postbus_topics;
create table postbus.topic_grant (
    role       text not null,
    role_oid   oid not null,                -- another role of that name has no grants
    pattern    text not null,               -- of names of topics; * stands for any text
    action     text not null,               -- publish, consume or read
    granted_by text not null,
    granted_at timestamptz not null default clock_timestamp(),
    primary key (role, pattern, action)
);

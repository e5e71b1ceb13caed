-- Who may use the HTTP server. Of a token only a hash is kept: nobody can read here what a caller has to say.
create table postbus.token (
    id         text primary key,
    hash       bytea not null,
    name       text not null,
    roles      text[] not null,
    topics     text[] not null,            -- patterns: * stands for any text
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz
);

-- Where messages are pushed to by HTTP. The secret signs what is sent, so it is kept as it is, and shown to nobody.
create table postbus.webhook (
    name        text primary key,
    topic       text not null,
    group_name  text,                      -- null: the consumer of a queue
    url         text not null,
    secret      text not null,
    concurrency integer not null,
    timeout     interval not null,
    enabled     boolean not null,
    created_at  timestamptz not null default clock_timestamp(),
    changed_at  timestamptz not null default clock_timestamp()
);
create unique index webhook_consumer_idx on postbus.webhook (topic, coalesce(group_name, ''));

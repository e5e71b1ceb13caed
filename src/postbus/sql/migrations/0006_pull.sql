-- breaking
-- Groups that are pulled from. Their messages go from the log to a shelf, the rows of `retrying`, and who pops takes them there.
alter table postbus.retrying
    add column shelved boolean not null default false,     -- put there to be popped, rather than because it failed
    add column token   uuid,                               -- of the pop that has it in hand, until due_at
    add column member  text;                               -- who popped it
create index retrying_token_idx on postbus.retrying (token) where token is not null;
drop index postbus.retrying_due_idx;
create index retrying_due_idx on postbus.retrying (subscription_id, due_at, lane) where not parked;
-- Rows live for milliseconds here, too.
alter table postbus.retrying set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- The key names the lane: `lanes` is then how many slices the messages are read in.
alter table postbus.topic add column named_lanes boolean not null default false;

-- What pop returns: a row for each lease, and a last one that tells how to go on.
create type postbus.popped as (
    topic           text,
    token           uuid,               -- null: settled already
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
    more            boolean,            -- asking again at once is worth it
    next_due        interval,           -- else, how long it is until something is expected
    next_floor      text                -- to be handed back with the next pop of the same
);

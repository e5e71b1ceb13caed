-- breaking
-- Groups that are pulled from: what one pop took from the log is a lease, beside those of queues, whose subscription_id is 0.
alter table postbus.lease
    add column subscription_id bigint not null default 0,
    add column lane            integer,
    add column positions       bigint[];        -- of the messages, in the log
create index lease_lane_idx on postbus.lease (subscription_id, lane) where subscription_id <> 0;

-- The key names the lane: a pop holds keys, not lanes, and `lanes` is how many slices their messages are read in.
alter table postbus.topic add column named_lanes boolean not null default false;

-- What pop returns: a row for each lease, or for each lane without one, and a last one that tells how to go on.
create type postbus.popped as (
    topic           text,
    lane            integer,
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
    more            boolean,            -- asking again at once is worth it
    next_due        interval,           -- else, how long it is until something is expected
    next_floor      text                -- to be handed back with the next pop of the same queue
);

-- Messages that a consumer has had: what makes its effects happen once, although deliveries repeat. A row is written in the
-- transaction of the effect, so it says "done", never "begun".
create table postbus.inbox (
    consumer   text not null,
    message_id text not null,
    done_at    timestamptz not null,
    expires_at timestamptz not null,
    primary key (consumer, message_id)
);
create index inbox_expires_at_idx on postbus.inbox (expires_at);

-- It tells of one thing more that it removes.
drop function if exists postbus.sweep(integer, timestamptz, boolean);

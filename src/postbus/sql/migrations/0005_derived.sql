-- breaking
-- What follows from other rows, or what nobody reads, is not kept.
drop view if exists postbus_outbox.outbox_topic_subscriptions, postbus.groups, postbus.catch_ups;
alter table postbus.catch_up drop column of, drop column reported_at;      -- subscription.catch_up_of tells whose history it is
alter table postbus.lease drop column claimed_at;
drop function if exists postbus.payload_text(bytea);

-- Messages that a group has settled although its cursor is not past them: they were put off, tried again, and are done,
-- or were given up. Whoever takes the lane over reads them once more, and must pass them by.
create table postbus.settled_ahead (
    subscription_id bigint not null,
    lane            integer not null,
    id              bigint not null,
    position        bigint not null,
    primary key (subscription_id, lane, id)
);
drop function if exists postbus.retrying_of(uuid[]);

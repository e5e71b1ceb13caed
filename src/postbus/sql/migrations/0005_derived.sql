-- breaking
-- What follows from other rows, or what nobody reads, is not kept.
drop view if exists postbus_outbox.outbox_topic_subscriptions, postbus.groups, postbus.catch_ups;
alter table postbus.catch_up drop column of, drop column reported_at;      -- subscription.catch_up_of tells whose history it is
alter table postbus.lease drop column claimed_at;
drop function if exists postbus.payload_text(bytea);

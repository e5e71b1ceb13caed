-- The topics, with the columns of a fan-out outbox. A retention of less than an hour, or of hours and minutes, is rounded up.
create or replace view postbus_outbox.outbox_topics as
select t.name as topic, t.semantics, ceil(extract(epoch from t.retention) / 3600)::integer as message_retention_hours,
       ceil(extract(epoch from t.zero_subscription_retention) / 3600)::integer as zero_subscription_retention_hours,
       t.block_writes_on_zero_subscriptions, t.tracking as completion_tracking_mode, t.created_at
  from postbus.topics t;

-- The webhooks, without their secrets.
create or replace view postbus.webhooks as
select w.name, w.topic, w.group_name, w.url, w.concurrency, w.timeout, w.enabled, w.created_at, w.changed_at
  from postbus.webhook w;

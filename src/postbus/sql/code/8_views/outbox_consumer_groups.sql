-- What each group has made of each message of the log, as a fan-out outbox tracks it. There is a row once the group has
-- dealt with the message: COMPLETED, or FAILED. One that is to be tried again is FAILED too, and has no processed_at yet.
create or replace view postbus_outbox.outbox_consumer_groups as
select hashint8extended(d.id, d.subscription_id) as id, d.id as message_id, d.topic, d.group_name,
       case d.status when 'COMPLETED' then 'COMPLETED' else 'FAILED' end as status, d.settled_at as processed_at, d.last_error as error_message,
       case when d.status = 'RETRYING' then d.attempts else greatest(d.attempts - 1, 0) end as retry_count
  from postbus.deliveries d
 where d.status in ('COMPLETED', 'DEAD') or (d.status = 'RETRYING' and d.attempts > 0);

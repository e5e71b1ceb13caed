-- The status of each message of the log at each group, with the columns of a fan-out outbox; groups that have ended included.
-- There is a row once the group has begun with the message: PENDING while it waits for its turn, or is in hand; then COMPLETED or
-- FAILED. A message that failed and is to be retried is FAILED too, and has no processed_at yet. A message that waited when its
-- group ended stays as it was.
create or replace view postbus_outbox.outbox_consumer_groups as
select hashint8extended(postbus.first_id(f.sequence) + message.index, f.subscription_id) as id,
       postbus.first_id(f.sequence) + message.index as message_id, t.name as topic, f.group_name,
       case when f.status = 'COMPLETED' then 'COMPLETED'
            when f.status = 'DEAD' then 'FAILED'
            when f.status in ('RETRYING', 'ABANDONED')
                 and (postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index, f.group_name,
                                          f.status, f.is_before)).attempts > 0 then 'FAILED'
            else 'PENDING' end as status,
       (postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index,
                            f.group_name, f.status, f.is_before)).settled_at
           as processed_at,
       (postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index,
                            f.group_name, f.status, f.is_before)).last_error
           as error_message,
       (select case when f.status = 'RETRYING' then d.attempts else greatest(d.attempts - 1, 0) end
          from postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index, f.group_name, f.status,
                                   f.is_before) as d) as retry_count
  from postbus.topic t
 cross join lateral postbus.delivery_statuses_of_topic(t.id) as f
 cross join lateral (select s.sequence, s.lane, s.txid, s.count, s.published_at from postbus.segment s
                      where s.storage_id = t.storage_id and s.topic_id = t.id and s.sequence = f.sequence limit 1) as s
 cross join lateral generate_series(f.first_index, f.last_index) as message (index)
 where t.storage_id is not null and (f.status not in ('SKIPPED', 'PENDING') or f.waits);

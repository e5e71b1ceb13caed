-- The deliveries of every message of the log to every group, one row each: see delivery_statuses and delivery. Takes time for all
-- messages of a topic, whatever is selected: use deliveries_of for one message.
create or replace view postbus.deliveries as
select t.name as topic, postbus.first_id(f.sequence) + message.index as id, s.published_at, s.keys[message.index + 1] as key,
       f.subscription_id, f.group_name, f.required, f.status,
       (postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index,
                            f.group_name, f.status, f.is_before)).settled_at,
       (postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index,
                            f.group_name, f.status, f.is_before)).worker,
       (postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index,
                            f.group_name, f.status, f.is_before)).attempts,
       (postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index,
                            f.group_name, f.status, f.is_before)).last_error,
       (postbus.delivery_at(t.id, row(s.sequence, s.lane, s.txid, s.count, s.published_at), message.index,
                            f.group_name, f.status, f.is_before)).holder
  from postbus.topic t
 cross join lateral postbus.delivery_statuses_of_topic(t.id) as f
 cross join lateral (select s.sequence, s.lane, s.txid, s.count, s.published_at, s.keys from postbus.segment s
                      where s.storage_id = t.storage_id and s.topic_id = t.id and s.sequence = f.sequence limit 1) as s
 cross join lateral generate_series(f.first_index, f.last_index) as message (index)
 where t.storage_id is not null;

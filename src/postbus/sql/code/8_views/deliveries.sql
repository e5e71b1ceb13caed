-- What became of every message of the log at every group: one row each, see delivery.
create or replace view postbus.deliveries as
select t.name as topic, postbus.first_id(s.position) + message.index as id, s.published_at, s.keys[message.index + 1] as key,
       d.subscription_id, d.group_name, d.required, d.status, d.settled_at, d.worker, d.attempts, d.last_error, d.holder
  from postbus.segment s
  join postbus.topic t on t.id = s.topic_id
 cross join lateral postbus.delivery(s.topic_id, s.lane, s.position, s.txid, s.count, s.published_at, 0, s.count - 1) as d
 cross join lateral generate_series(d.first_index, d.last_index) as message (index);

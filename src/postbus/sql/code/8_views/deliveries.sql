-- What became of every message of the log at every group: one row each, see delivery.
create or replace view postbus.deliveries as
select m.topic, m.id, m.published_at, m.key, d.*
  from postbus.log m
 cross join lateral postbus.delivery(m.topic_id, m.id, m.lane, m.position, m.txid, m.index, m.segment_count, m.published_at) as d;

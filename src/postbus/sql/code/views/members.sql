-- The counters of each member of a group; handling_ms is the average time that its handler takes for a message.
create or replace view postbus.members as
select t.name as topic, s.group_name, m.name, m.processed, m.failed, m.filtered, m.in_flight, m.seen_at,
       1000 * m.handling_seconds / nullif(m.processed + m.failed, 0) as handling_ms
  from postbus.member m
  join postbus.subscription s on s.id = m.subscription_id and s.state <> 'CANCELLED'
  join postbus.topic t on t.id = s.topic_id;

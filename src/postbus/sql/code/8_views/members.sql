-- What each member of a group has done.
create or replace view postbus.members as
select t.name as topic, s.group_name, m.name, m.processed, m.failed, m.filtered, m.in_flight, m.seen_at
  from postbus.member m
  join postbus.subscription s on s.id = m.subscription_id and s.state <> 'CANCELLED'
  join postbus.topic t on t.id = s.topic_id;

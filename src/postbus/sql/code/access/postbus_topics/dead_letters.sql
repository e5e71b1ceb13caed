-- What postbus.dead_letters shows of the topics that the caller may read: see grant_topic. A barrier: no function in a condition of the
-- caller's sees rows of other topics.
create or replace view postbus_topics.dead_letters with (security_barrier) as
select * from postbus.dead_letters as one where one.topic = any (array(select * from postbus_topics.readable()));

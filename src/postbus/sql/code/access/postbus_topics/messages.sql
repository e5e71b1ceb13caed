-- What postbus.messages shows of the topics that the caller may read: see grant_topic. A barrier: no function in a condition of the
-- caller's sees rows of other topics.
create or replace view postbus_topics.messages with (security_barrier) as
select * from postbus.messages as one where one.topic = any (array(select * from postbus_topics.readable()));

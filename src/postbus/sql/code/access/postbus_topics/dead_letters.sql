-- The rows of postbus.dead_letters of the topics that the caller may read: see grant_topic. It is a security barrier, so functions in
-- conditions of the caller see no rows of other topics.
create or replace view postbus_topics.dead_letters with (security_barrier) as
select * from postbus.dead_letters as own where own.topic = any (array(select * from postbus_topics.readable()));

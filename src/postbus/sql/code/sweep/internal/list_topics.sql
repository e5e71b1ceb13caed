-- Lists the topics that have segments in a leaf, which must be closed and whose writers must have ended. Steps from one topic
-- to the next in the index, so it takes as long as there are topics. Does so once for each leaf.
--
-- Writes: leaf_topic, log_leaf.
create or replace function postbus.list_topics(storage_id integer, epoch integer) returns void
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off as $$
begin
    execute format(
        'with recursive found as (
            (select s.topic_id from postbus.%1$I s order by s.topic_id limit 1)
             union all
            select (select s.topic_id from postbus.%1$I s where s.topic_id > f.topic_id order by s.topic_id limit 1)
              from found f where f.topic_id is not null
         )
         insert into postbus.leaf_topic (storage_id, epoch, topic_id)
         select $1, $2, f.topic_id from found f where f.topic_id is not null
         on conflict on constraint leaf_topic_pkey do nothing', postbus.leaf_name(storage_id, epoch))
      using storage_id, epoch;
    update postbus.log_leaf l set listed = true where l.storage_id = list_topics.storage_id and l.epoch = list_topics.epoch;
end $$;

-- Lists the topics that have segments in a partition, which is closed and whose writers have ended. Steps from one topic to the
-- next in the index, so the time it takes grows with the topics only. Done once for each partition.
--
-- Writes: partition_topic, log_partition.
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
         insert into postbus.partition_topic (storage_id, epoch, topic_id)
         select $1, $2, f.topic_id from found f where f.topic_id is not null
         on conflict on constraint partition_topic_pkey do nothing', postbus.partition_name(storage_id, epoch))
      using storage_id, epoch;
    update postbus.log_partition l set listed = true where l.storage_id = list_topics.storage_id and l.epoch = list_topics.epoch;
end $$;

-- Messages that topics have in closed partitions although they no longer kept them at a given time: their retention was over by
-- then and no group needed the messages, or their max_retention was over.
create or replace function postbus.overdue_parts(by timestamptz) returns table (storage_id integer, epoch integer, messages bigint)
language sql stable as $$
    select l.storage_id, l.epoch, sum(part.messages)::bigint
      from postbus.log_partition l
      join postbus.partition_topic part on part.storage_id = l.storage_id and part.epoch = l.epoch
      left join postbus.topic t on t.id = part.topic_id
     cross join lateral postbus.log_retention(t, by) as r
     where l.closed_at <= by
       and (t.id is null or l.closed_at <= by - r.most or part.needed_since is null and l.closed_at <= by - r.keeps)
     group by l.storage_id, l.epoch
$$;

-- The topics that have messages in a partition ahead of subscriptions: for each topic one lane of one subscription, and the number
-- of its row in the ledger. While that is the lane's last row, the messages are still ahead of it.
--
-- Reads above each cursor, and late segments below it, but nothing that the cursor is past.
create or replace function postbus.find_needed(partition postbus.log_partition, subscription_ids bigint[])
returns table (topic_id bigint, subscription_id bigint, lane integer, number bigint)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off as $$
begin
    return query execute format(
        'select distinct on (s.topic_id) s.topic_id, c.subscription_id, c.lane, c.number
           from unnest($1) as one (id)
           join postbus.subscription s on s.id = one.id
           join postbus.current_cursor c on c.subscription_id = s.id and not postbus.has_passed(c.cursor, $2)
          where exists (select from postbus.%1$I g
                         where g.topic_id = s.topic_id and g.lane = c.lane and g.sequence > ((c.cursor).seen).sequence
                           and postbus.unseen_in_segment(c.cursor, g.sequence, g.txid, g.count, g.published_at) > 0)
             or exists (select from (select x as low, x as high from pg_snapshot_xip(((c.cursor).seen).snapshot) as x
                                      union all
                                     select pg_snapshot_xmax(((c.cursor).seen).snapshot), ((c.cursor).seen).txid) as late
                          join postbus.%1$I g on g.txid >= late.low and g.txid <= late.high
                         where g.topic_id = s.topic_id and g.lane = c.lane
                           and postbus.unseen_in_segment(c.cursor, g.sequence, g.txid, g.count, g.published_at) > 0)',
        postbus.partition_name(partition.storage_id, partition.epoch))
      using subscription_ids, partition;
end $$;

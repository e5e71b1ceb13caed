-- Notes what the current partition has, once per period of its storage. So thin_marked can tell which segments have been there for
-- longer than a topic's max_retention. last_sequence was read before this transaction had an id: each transaction that was given a
-- sequence up to last_sequence has a lower id.
--
-- Writes: partition_mark.
create or replace function postbus.mark_partition(storage postbus.log_storage, epoch integer, last_sequence bigint, as_of timestamptz) returns void
language sql as $$
    insert into postbus.partition_mark (storage_id, epoch, at, sequence, txid)
    select l.storage_id, l.epoch, as_of, last_sequence, pg_current_xact_id()
      from postbus.log_partition l
     cross join lateral (select max(m.at) as at, max(m.sequence) as sequence from postbus.partition_mark m
                          where m.storage_id = l.storage_id and m.epoch = l.epoch) as last
     where l.storage_id = (storage).id and l.epoch = mark_partition.epoch
       and greatest(l.opened_at, last.at) <= as_of - (storage).period
       and last_sequence >> 43 = l.epoch
       and (last.sequence is null or last.sequence < last_sequence)
       and exists (select from postbus.partition_topic part where part.storage_id = l.storage_id and part.epoch = l.epoch)
$$;

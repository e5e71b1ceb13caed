-- Deletes segments of some topics in a partition, in a step of bounded size: up to max_count rows and about 16 MB. Deletes either
-- all of them, in a closed partition, or only those up to a sequence. Records which group lost how many messages by that. The
-- receipts of a topic are deleted with the last of its segments, unless an earlier partition has segments that they may be about:
-- then they stay until the partition is dropped. A topic whose row is locked, for example because a session deletes the topic, is
-- left for later.
--
-- Returns the numbers of deleted rows and messages.
--
-- Writes: segment, receipt, partition_topic, log_partition, loss, subscription.  Locks: topic rows (skip locked).
create or replace function postbus.thin_partition(
    partition  postbus.log_partition,
    topic_ids  bigint[],
    max_count  integer,
    as_of      timestamptz,
    up_to      bigint default null,
    out rows     bigint,
    out messages bigint
)
language plpgsql
set enable_seqscan = off as $$
declare
    _table text := postbus.partition_name(partition.storage_id, partition.epoch);
    _bytes bigint := 16777216;
    _topic bigint;
    _step  record;
    _gone  bigint;
begin
    rows := 0;
    messages := 0;
    foreach _topic in array topic_ids loop
        exit when rows >= max_count or _bytes <= 0;
        perform from postbus.topic t where t.id = _topic for key share skip locked;
        continue when not found and exists (select from postbus.topic t where t.id = _topic);
        execute format(
            'select max(step.sequence) as up_to, count(*) as rows, coalesce(sum(step.count), 0) as messages, coalesce(sum(step.bytes), 0) as bytes
               from (select s.sequence, s.count, s.bytes, sum(s.bytes) over (order by s.sequence) - s.bytes as before
                       from (select s.sequence, s.count, s.bytes from postbus.%I s
                              where s.topic_id = $1 and s.sequence <= $4
                              order by s.sequence limit $2) as s) as step
              where step.before < $3', _table)
          into _step
         using _topic, max_count - rows, _bytes, coalesce(up_to, 9223372036854775807);
        if _step.rows > 0 then
            perform postbus.record_loss(partition, array[_topic], as_of, _step.up_to);
            execute format('delete from postbus.%I s where s.topic_id = $1 and s.sequence <= $2', _table)
              using _topic, _step.up_to;
            rows := rows + _step.rows;
            messages := messages + _step.messages;
            _bytes := _bytes - _step.bytes;
            update postbus.partition_topic t set messages = greatest(t.messages - _step.messages, 0)
             where t.storage_id = partition.storage_id and t.epoch = partition.epoch and t.topic_id = _topic;
        end if;
        exit when rows >= max_count or _bytes <= 0;
        if up_to is not null then
            update postbus.partition_topic t set thinned_to = thin_partition.up_to
             where t.storage_id = partition.storage_id and t.epoch = partition.epoch and t.topic_id = _topic;
            continue;
        end if;
        if not exists (select from postbus.partition_topic t
                        where t.storage_id = partition.storage_id and t.epoch < partition.epoch and t.topic_id = _topic) then
            execute format(
                'delete from postbus.%1$I r
                  where r.ctid = any (array(select old.ctid from postbus.%1$I old
                                             where old.subscription_id = any (
                                                    array(select st.subscription_id from postbus.stretch st where st.topic_id = $1))
                                             limit $2))', format('receipt_%s_%s', partition.storage_id, partition.epoch))
              using _topic, max_count - rows;
            get diagnostics _gone = row_count;
            rows := rows + _gone;
            exit when rows >= max_count;
        end if;
        delete from postbus.partition_topic t
         where t.storage_id = partition.storage_id and t.epoch = partition.epoch and t.topic_id = _topic;
    end loop;
    update postbus.log_partition l set messages = greatest(l.messages - thin_partition.messages, 0)
     where l.storage_id = partition.storage_id and l.epoch = partition.epoch and thin_partition.messages > 0;
end $$;

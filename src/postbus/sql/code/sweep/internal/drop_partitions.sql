-- Removes messages that a log storage no longer keeps. Each topic is judged by its own options and groups: its retention is over,
-- and every group that keeps messages has read them; or its max_retention is over, and then each group's loss is recorded. Both
-- times count from the closing of the partition; max_retention in a partition that lasts longer than the storage's period counts
-- from its marks (mark_partition).
--
-- A partition that no topic keeps is dropped; from one that a topic still keeps, the other topics' messages are deleted
-- (thin_partition). One drop or one step per call, since the lock of a drop lasts until the end of the transaction. Returns the
-- name of the dropped partition, the number of rows deleted from others, and the number of removed messages. `blocked`: there may
-- be a partition to drop, but other sessions use it or may still be writing to it.
--
-- Hardly waits: drops are left for later while a long transaction uses the storage. A drop waits for short transactions, and makes
-- new ones wait, for at most 50 milliseconds.
--
-- Writes: log_partition, partition_topic, loss, tables; see thin_partition and thin_marked.
create or replace function postbus.drop_partitions(
    storage_id integer,
    ended      xid8,            -- all transactions with a lower id had ended when this sweep began to count
    as_of      timestamptz,
    out dropped  text[],
    out thinned  bigint,
    out messages bigint,
    out blocked  boolean
)
language plpgsql as $$
declare
    _least     interval := (select min(least(t.retention, t.zero_subscription_retention, t.max_retention))
                              from postbus.topic t where t.storage_id = drop_partitions.storage_id);
    _step_size integer := (select least(s.batch_size, 1000) from postbus.sweep_setting s);
    _partition postbus.log_partition;
    _judge     record;
    _users     text[];
    _stuck     boolean := false;     -- a transaction that uses one partition by way of the storage uses all: one try is enough
begin
    dropped := array[]::text[];
    thinned := 0;
    messages := 0;
    blocked := exists (select from postbus.log_partition l
                         join postbus.partition_topic part on part.storage_id = l.storage_id and part.epoch = l.epoch
                         join postbus.topic t on t.id = part.topic_id
                        where l.storage_id = drop_partitions.storage_id and l.closed_txid >= ended
                          and l.closed_at <= as_of - least(t.retention, t.zero_subscription_retention, t.max_retention));
    for _partition in
        select * from postbus.log_partition l
         where l.storage_id = drop_partitions.storage_id and l.closed_txid < ended       -- the messages of all its writers are counted
           and (_least is null or l.closed_at <= as_of - _least)                     -- in younger ones every topic keeps its messages
         order by l.epoch
    loop
        if not _partition.listed then
            perform postbus.list_topics(storage_id, _partition.epoch);
        end if;
        select j.gone, j.is_kept into _judge from postbus.judge_partition(_partition, as_of) as j;
        if not _judge.is_kept then
            continue when _stuck;
            _stuck := true;
            _users := postbus.users_of_partition(storage_id, _partition.epoch);
            if _users <> '{}' then
                perform pg_sleep(0.02);
                continue when _users && postbus.users_of_partition(storage_id, _partition.epoch);
            end if;
            continue when not postbus.drop_partition(_partition, _judge.gone, as_of);
            dropped := array[postbus.partition_name(storage_id, _partition.epoch)];
            messages := _partition.messages;
            blocked := false;
            return;
        elsif _judge.gone <> '{}' then
            select t.rows, t.messages into thinned, messages
              from postbus.thin_partition(_partition, _judge.gone, _step_size, as_of) as t;
            if thinned > 0 then
                return;
            end if;
        end if;
    end loop;
    select step.rows, step.messages into thinned, messages from postbus.thin_marked(storage_id, ended, _step_size, as_of) as step;
    blocked := blocked or _stuck;
end $$;

-- Deletes segments that topics have had for longer than their max_retention in partitions that are written to for longer than the
-- storage's period: those before the last mark of that age, one step at a time (see thin_partition). Topics with a longer retention
-- make partitions last longer, and must not make a max_retention longer. A mark is usable when all transactions that may have
-- written before it have ended.
--
-- Writes: see thin_partition.
create or replace function postbus.thin_marked(
    storage_id integer,
    ended      xid8,            -- all transactions with a lower id had ended when this sweep began to count
    max_count  integer,
    as_of      timestamptz,
    out rows     bigint,
    out messages bigint
)
language plpgsql as $$
declare
    _old record;
begin
    rows := 0;
    messages := 0;
    for _old in
        select l as partition, part.topic_id, mark.sequence
          from (select m.epoch, min(m.at) as first_at from postbus.partition_mark m
                 where m.storage_id = thin_marked.storage_id and m.txid < ended group by m.epoch) as marked
          join postbus.log_partition l on l.storage_id = thin_marked.storage_id and l.epoch = marked.epoch
          join postbus.partition_topic part on part.storage_id = l.storage_id and part.epoch = l.epoch
          join postbus.topic t on t.id = part.topic_id and marked.first_at <= as_of - t.max_retention
         cross join lateral (select max(m.sequence) as sequence from postbus.partition_mark m
                              where m.storage_id = l.storage_id and m.epoch = l.epoch and m.txid < ended
                                and m.at <= as_of - t.max_retention) as mark
         where mark.sequence > coalesce(part.thinned_to, 0)
         order by l.epoch, part.topic_id
    loop
        select step.rows, step.messages into rows, messages
          from postbus.thin_partition(_old.partition, array[_old.topic_id], max_count, as_of, _old.sequence) as step;
        exit when rows > 0;
    end loop;
end $$;

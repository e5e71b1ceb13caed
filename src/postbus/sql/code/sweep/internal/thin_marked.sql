-- Deletes what topics have had for longer than their max_retention in leaves that are written to for longer than the storage's
-- period, one step (see thin_leaf): what lies before the last mark of that age. Older neighbours make leaves last longer, and
-- must not make a cap longer. Marks are usable when all who may have written before them have ended.
--
-- Writes: see thin_leaf.
create or replace function postbus.thin_marked(
    storage_id integer,
    ended      xid8,            -- all who have a lower transaction id had ended when this sweep began to count
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
        select l as leaf, part.topic_id, mark.position
          from (select m.epoch, min(m.at) as first_at from postbus.leaf_mark m
                 where m.storage_id = thin_marked.storage_id and m.txid < ended group by m.epoch) as marked
          join postbus.log_leaf l on l.storage_id = thin_marked.storage_id and l.epoch = marked.epoch
          join postbus.leaf_topic part on part.storage_id = l.storage_id and part.epoch = l.epoch
          join postbus.topic t on t.id = part.topic_id and marked.first_at <= as_of - t.max_retention
         cross join lateral (select max(m.position) as position from postbus.leaf_mark m
                              where m.storage_id = l.storage_id and m.epoch = l.epoch and m.txid < ended
                                and m.at <= as_of - t.max_retention) as mark
         where mark.position > coalesce(part.thinned_to, 0)
         order by l.epoch, part.topic_id
    loop
        select step.rows, step.messages into rows, messages
          from postbus.thin_leaf(_old.leaf, array[_old.topic_id], max_count, as_of, _old.position) as step;
        exit when rows > 0;
    end loop;
end $$;

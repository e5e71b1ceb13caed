-- Removes stretches that have ended, and joinings, whose messages are all in partitions that were dropped. A position may be some
-- segments further than its sequence says (next_position), so the next partition has to be dropped, too.
--
-- Writes: stretch, receipt_partition, joining.
create or replace function postbus.forget_stretches() returns void
language sql as $$
    with first as materialized (
        select t.id as topic_id, min(l.epoch) as epoch
          from postbus.topic t join postbus.log_partition l on l.storage_id = t.storage_id group by t.id
    ), stretches as (
        delete from postbus.stretch st using first
         where first.topic_id = st.topic_id and not (st.reached is null)
           and (greatest(((st.reached).seen).sequence, ((st.reached).target).sequence, (st.died).sequence, 0) >> 43) + 1 < first.epoch
    ), partitions as (
        delete from postbus.receipt_partition r
         where not exists (select from postbus.log_partition l where l.storage_id = r.storage_id and l.epoch = r.epoch)
    )
    delete from postbus.joining j using first where first.topic_id = j.topic_id and (j.sequence >> 43) + 1 < first.epoch
$$;

-- Removes what tells of messages that are not retained any more: stretches that have ended, and joinings, whose messages are all in leaves
-- that were dropped. A place may be some segments further than its position says (next_place), so the next leaf has to be gone, too.
--
-- Writes: stretch, receipt_leaf, joining.
create or replace function postbus.forget_stretches() returns void
language sql as $$
    with first as materialized (
        select t.id as topic_id, min(l.epoch) as epoch
          from postbus.topic t join postbus.log_leaf l on l.storage_id = t.storage_id group by t.id
    ), stretches as (
        delete from postbus.stretch st using first
         where first.topic_id = st.topic_id and not (st.reached is null)
           and (greatest(((st.reached).seen).position, ((st.reached).target).position, (st.died).position, 0) >> 43) + 1 < first.epoch
    ), leaves as (
        delete from postbus.receipt_leaf r
         where not exists (select from postbus.log_leaf l where l.storage_id = r.storage_id and l.epoch = r.epoch)
    )
    delete from postbus.joining j using first where first.topic_id = j.topic_id and (j.position >> 43) + 1 < first.epoch
$$;

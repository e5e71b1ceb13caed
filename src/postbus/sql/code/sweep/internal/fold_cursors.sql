-- Removes rows of the ledger that later ones have replaced, and returns their number. Rows are removed some minutes later, and many
-- at a time, so that there are always far more live rows than dead ones. Rows by which a lane was taken stay for a day: they stop a
-- former holder even if it has an old snapshot. Rows of topics with tracking REFERENCE_COUNTING become receipts, for as long as
-- there are messages that they are about.
--
-- Writes: cursor, receipt, receipt_partition.
create or replace function postbus.fold_cursors(storage_id integer, as_of timestamptz) returns bigint
language plpgsql as $$
declare
    _count bigint;
begin
    with last as materialized (
        select newest.subscription_id, newest.lane, newest.number, t.tracking
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id
          join postbus.current_cursor newest on newest.subscription_id = s.id
         cross join lateral (select c.at from postbus.cursor c
                              where c.subscription_id = newest.subscription_id and c.lane = newest.lane
                                and (c.fenced_at > as_of - interval '1 day') is not true
                              order by c.number limit 1) as oldest
         where t.storage_id = fold_cursors.storage_id and oldest.at < as_of - interval '6 minutes'
    ), folded as (
        delete from postbus.cursor c using last
         where c.subscription_id = last.subscription_id and c.lane = last.lane and c.number < last.number
           and c.at < as_of - interval '5 minutes' and (c.fenced_at > as_of - interval '1 day') is not true
        returning c.*, last.tracking, greatest(((c.cursor).seen).sequence, (c.cursor).done_sequence) >> 43 as epoch
    ), kept as (
        insert into postbus.receipt (storage_id, epoch, subscription_id, lane, at, worker, number, cursor, moved)
        select fold_cursors.storage_id, partition.epoch, f.subscription_id, f.lane, f.at, f.worker, f.number, f.cursor, f.moved
          from folded f
          join postbus.log_partition partition
            on partition.storage_id = fold_cursors.storage_id
           and partition.epoch = case when f.moved is null then f.epoch else postbus.epoch_of(fold_cursors.storage_id, f.epoch) end
         where f.tracking = 'REFERENCE_COUNTING'
        returning subscription_id, epoch
    ), noted as (
        insert into postbus.receipt_partition (subscription_id, epoch, storage_id)
        select distinct k.subscription_id, k.epoch, fold_cursors.storage_id from kept k
        on conflict do nothing
    )
    select count(*) into _count from folded;
    return _count;
end $$;

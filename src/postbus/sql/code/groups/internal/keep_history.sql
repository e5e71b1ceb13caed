-- Keeps what is known of messages that a subscription has settled, or left behind, when it ends: the ends of its stretches,
-- receipts of messages that were deferred or settled ahead, and its ledger if the topic is tracked by receipts.
--
-- Writes: stretch, receipt, receipt_partition, settled_ahead.
create or replace function postbus.keep_history(topic postbus.topic, subscription_id bigint) returns void
language plpgsql
set enable_seqscan = off as $$
begin
    perform postbus.move_ahead_to_receipts(topic, subscription_id);
    perform postbus.note_left_behind(topic, array(select r.ctid from postbus.deferred r where r.subscription_id = keep_history.subscription_id),
                                 'ABANDONED');
    perform postbus.note_death(array[subscription_id]);
    update postbus.stretch st set reached = c.cursor
      from postbus.current_cursor c
     where st.subscription_id = keep_history.subscription_id and st.reached is null and c.subscription_id = st.subscription_id and c.lane = st.lane;
    if topic.tracking = 'REFERENCE_COUNTING' then
        with kept as (
            insert into postbus.receipt (storage_id, epoch, subscription_id, lane, at, worker, number, cursor, moved)
            select topic.storage_id, postbus.epoch_of(topic.storage_id, greatest(((c.cursor).seen).sequence, (c.cursor).done_sequence) >> 43),
                   c.subscription_id, c.lane, c.at, c.worker, c.number, c.cursor, c.moved
              from postbus.cursor c where c.subscription_id = keep_history.subscription_id
            returning receipt.epoch
        )
        insert into postbus.receipt_partition (subscription_id, epoch, storage_id)
        select distinct keep_history.subscription_id, k.epoch, topic.storage_id from kept k
        on conflict do nothing;
    end if;
end $$;

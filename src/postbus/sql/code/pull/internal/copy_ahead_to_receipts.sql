-- Writes receipts of messages that the groups of a topic, or one subscription, have settled ahead of their cursors until now. So
-- these messages stay completed, although the positions of the groups do not say so.
--
-- Writes: receipt.
create or replace function postbus.copy_ahead_to_receipts(topic postbus.topic, subscription_id bigint default null) returns void
language plpgsql as $$
declare
    -- The last transaction id so far: the snapshot of a joining that is noted now shows it, those of earlier joinings do not.
    _last xid8 := ((pg_snapshot_xmax(pg_current_snapshot())::text)::bigint - 1)::text;
begin
    with one as materialized (
        select a.subscription_id, a.lane, a.sequence, postbus.first_id(a.sequence) + index as id
          from (select distinct st.subscription_id, st.lane from postbus.stretch st where st.topic_id = topic.id
                   and (copy_ahead_to_receipts.subscription_id is null or st.subscription_id = copy_ahead_to_receipts.subscription_id)) as part
          join postbus.settled_ahead a on a.subscription_id = part.subscription_id and a.lane = part.lane
         cross join lateral (select generate_series(lower(run), upper(run) - 1) as index from unnest(a.indexes) as run) as index
         where postbus.is_ahead(a.subscription_id, a.lane, postbus.first_id(a.sequence) + index, a.sequence)
    ), marked as (
        update postbus.receipt r set deviates = true
          from one where r.storage_id = topic.storage_id and r.subscription_id = one.subscription_id and r.id = one.id and r.deviates is not true
    )
    insert into postbus.receipt (storage_id, epoch, subscription_id, lane, at, worker, id, outcome, attempts, stretch, txid, deviates)
    select topic.storage_id, postbus.epoch_of(topic.storage_id, one.sequence >> 43), one.subscription_id, one.lane, clock_timestamp(), null,
           one.id, 'COMPLETED', 1, postbus.stretch_of(one.subscription_id, one.lane), _last, true
      from one
     where not exists (select from postbus.deferred w         -- redriven
                        where w.subscription_id = one.subscription_id and w.lane = one.lane and w.id = one.id)
       and not exists (select from postbus.receipt r
                        where r.storage_id = topic.storage_id and r.subscription_id = one.subscription_id and r.id = one.id
                          and (r.outcome = 'COMPLETED'
                               or r.outcome in ('DEAD', 'SKIPPED') and (r.stretch < postbus.stretch_of(one.subscription_id, one.lane)) is not true));
end $$;

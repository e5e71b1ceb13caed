-- Lets receipts tell what the groups of a topic, or one subscription, have settled before their cursors were past it, up to now: it stays completed
-- although the places of these groups do not tell so.
--
-- Writes: receipt.
create or replace function postbus.tell_ahead(topic postbus.topic, subscription_id bigint default null) returns void
language plpgsql as $$
declare
    -- The last transaction that has ended: the joining of now shows it, and earlier ones do not.
    _last xid8 := ((pg_snapshot_xmax(pg_current_snapshot())::text)::bigint - 1)::text;
begin
    with one as materialized (
        select a.subscription_id, a.lane, a.position, postbus.first_id(a.position) + index as id
          from (select distinct st.subscription_id, st.lane from postbus.stretch st where st.topic_id = topic.id
                   and (tell_ahead.subscription_id is null or st.subscription_id = tell_ahead.subscription_id)) as part
          join postbus.settled_ahead a on a.subscription_id = part.subscription_id and a.lane = part.lane
         cross join lateral (select generate_series(lower(run), upper(run) - 1) as index from unnest(a.indexes) as run) as index
         where postbus.is_ahead(a.subscription_id, a.lane, postbus.first_id(a.position) + index, a.position)
    ), told as (
        update postbus.receipt r set odd = true
          from one where r.storage_id = topic.storage_id and r.subscription_id = one.subscription_id and r.id = one.id and r.odd is not true
    )
    insert into postbus.receipt (storage_id, epoch, subscription_id, lane, at, worker, id, outcome, attempts, stretch, txid, odd)
    select topic.storage_id, postbus.epoch_of(topic.storage_id, one.position >> 43), one.subscription_id, one.lane, clock_timestamp(), null,
           one.id, 'COMPLETED', 1, postbus.stretch_of(one.subscription_id, one.lane), _last, true
      from one
     where not exists (select from postbus.retrying w         -- redriven
                        where w.subscription_id = one.subscription_id and w.lane = one.lane and w.id = one.id)
       and not exists (select from postbus.receipt r
                        where r.storage_id = topic.storage_id and r.subscription_id = one.subscription_id and r.id = one.id
                          and (r.outcome = 'COMPLETED'
                               or r.outcome in ('DEAD', 'SKIPPED') and (r.stretch < postbus.stretch_of(one.subscription_id, one.lane)) is not true));
end $$;

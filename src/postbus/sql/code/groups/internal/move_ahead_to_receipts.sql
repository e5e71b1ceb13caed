-- Turns what a subscription has settled ahead of its cursor into receipts, since its cursor will not pass these messages any more.
-- Messages that have a receipt need no other.
--
-- Writes: receipt, settled_ahead.
create or replace function postbus.move_ahead_to_receipts(topic postbus.topic, subscription_id bigint) returns void
language plpgsql as $$
begin
    perform postbus.keep_receipt(topic, a.subscription_id, a.lane, array_agg(one.id), array_agg(a.sequence), array_agg('COMPLETED'::text),
                                 array_agg(1), array_agg(null::text), null, array_agg(null::bigint), clock_timestamp())
       from postbus.settled_ahead a
      cross join lateral (select postbus.first_id(a.sequence) + index as id
                            from unnest(a.indexes) as run, generate_series(lower(run), upper(run) - 1) as index) as one
      where a.subscription_id = move_ahead_to_receipts.subscription_id
        and postbus.is_ahead(a.subscription_id, a.lane, one.id, a.sequence)
        and not exists (select from postbus.deferred w         -- redriven
                         where w.subscription_id = a.subscription_id and w.lane = a.lane and w.id = one.id)
        and not exists (select from postbus.receipt r
                         where r.storage_id = topic.storage_id and r.id = one.id and r.subscription_id = a.subscription_id
                           and (r.outcome = 'COMPLETED'
                                or r.outcome in ('DEAD', 'SKIPPED') and (r.stretch < postbus.stretch_of(a.subscription_id, a.lane)) is not true))
      group by a.subscription_id, a.lane;
    delete from postbus.settled_ahead a where a.subscription_id = move_ahead_to_receipts.subscription_id;
end $$;

-- Renumbers the transaction ids that tell in which order groups joined, were moved, died, and settled single messages, since those
-- of the other server mean nothing here. The order stays, and all of it lies before later transactions.
--
-- Each joining has a number, and the next lower ones belong to it: a transaction that a joining does not show gets the number of
-- the last such joining. Between these numbers there is one for deaths. Moments that lie too far back for the number of
-- transactions that this server has had become one.
--
-- Writes: stretch, joining, receipt.
create or replace function postbus.rebase_moments() returns void
language plpgsql as $$
declare
    _before   bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;      -- all transactions below it have ended
    _topic_id bigint;
    _moments  xid8[];
    _numbers  bigint[];
begin
    for _topic_id in select distinct st.topic_id from postbus.stretch st loop
        _moments := array(select distinct pg_snapshot_xmax(j.snapshot) as xmax from postbus.joining j where j.topic_id = _topic_id order by xmax);
        _numbers := array(select greatest(_before - 2 * n, 6) from generate_series(cardinality(_moments), 1, -1) as n);
        with open as materialized (     -- a snapshot does not show transactions that were open then, either
            select xid as txid, (array_agg(pg_snapshot_xmax(j.snapshot) order by pg_snapshot_xmax(j.snapshot) desc nulls last))[1] as until
              from postbus.joining j cross join lateral pg_snapshot_xip(j.snapshot) as xid where j.topic_id = _topic_id group by xid
        ), settled as (
            update postbus.receipt r
               set txid = coalesce(_numbers[width_bucket(coalesce((select o.until from open o where o.txid = r.txid), r.txid), _moments)], 3)
                          ::text::xid8
             where r.id is not null and r.subscription_id in (select st.subscription_id from postbus.stretch st where st.topic_id = _topic_id)
        )
        update postbus.stretch st
           set txid = coalesce(_numbers[width_bucket(coalesce((select o.until from open o where o.txid = st.txid), st.txid), _moments)], 3)
                      ::text::xid8,
               died = case when st.died is null or ((st.died).snapshot)::text = '3:3:' then st.died      -- that shows nothing
                           else row((st.died).sequence, '2', format('%1$s:%1$s:', (
                                    select coalesce(_numbers[n] + (_moments[n] <> pg_snapshot_xmax((st.died).snapshot))::integer,
                                                    greatest(_before - 2 * cardinality(_moments), 6) - 1)
                                      from width_bucket(pg_snapshot_xmax((st.died).snapshot), _moments) as n)))::postbus.log_position end
         where st.topic_id = _topic_id;
        update postbus.joining j
           set snapshot = format('%1$s:%1$s:', _numbers[array_position(_moments, pg_snapshot_xmax(j.snapshot))])::pg_snapshot
         where j.topic_id = _topic_id;
    end loop;
end $$;

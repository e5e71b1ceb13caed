-- The same as unpark_next, for all keys of a subscription.
--
-- Writes: deferred.
create or replace function postbus.unpark_all(subscription_id bigint) returns void
language plpgsql as $$
declare
    _line record;
begin
    for _line in
        select r.lane, array_agg(distinct r.key) as keys from postbus.deferred r
         where r.subscription_id = unpark_all.subscription_id and r.parked group by r.lane
    loop
        perform postbus.unpark_next(unpark_all.subscription_id, _line.lane, _line.keys, clock_timestamp());
    end loop;
end $$;

-- Lets the first message of each key go on that waits behind nothing any more, of all keys of a subscription: see unpark_retrying.
--
-- Writes: retrying.
create or replace function postbus.unpark_all(subscription_id bigint) returns void
language plpgsql as $$
declare
    _line record;
begin
    for _line in
        select r.lane, array_agg(distinct r.key) as keys from postbus.retrying r
         where r.subscription_id = unpark_all.subscription_id and r.parked group by r.lane
    loop
        perform postbus.unpark_retrying(unpark_all.subscription_id, _line.lane, _line.keys, clock_timestamp());
    end loop;
end $$;

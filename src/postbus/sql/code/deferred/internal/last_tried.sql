-- The position up to which messages of a key on a shelf may be in hand: that of the first one that waits there and was never tried.
-- What is in hand of a key lies before all that wait, however many these are.
create or replace function postbus.last_tried(subscription_id bigint, lane integer, key text) returns bigint
language sql stable as $$
    select coalesce((select r.position from postbus.retrying r
                      where r.subscription_id = last_tried.subscription_id and r.lane = last_tried.lane and r.key = last_tried.key
                        and r.parked and r.shelved
                      order by r.position, r.id limit 1), 9223372036854775807)
$$;

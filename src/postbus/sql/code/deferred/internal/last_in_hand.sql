-- The sequence up to which messages of a key in the pull buffer may be in hand: that of the first message that waits and was never
-- tried. Messages in hand lie before all waiting messages, however many these are.
create or replace function postbus.last_in_hand(subscription_id bigint, lane integer, key text) returns bigint
language sql stable as $$
    select coalesce((select r.sequence from postbus.deferred r
                      where r.subscription_id = last_in_hand.subscription_id and r.lane = last_in_hand.lane and r.key = last_in_hand.key
                        and r.parked and r.buffered
                      order by r.sequence, r.id limit 1), 9223372036854775807)
$$;

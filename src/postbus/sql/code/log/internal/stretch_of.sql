-- The current stretch of a subscription in a lane: messages that it reads now belong to this stretch.
create or replace function postbus.stretch_of(subscription_id bigint, lane integer) returns bigint
language sql stable as $$
    select st.number from postbus.stretch st
     where st.subscription_id = stretch_of.subscription_id and st.lane = stretch_of.lane order by st.number desc limit 1
$$;

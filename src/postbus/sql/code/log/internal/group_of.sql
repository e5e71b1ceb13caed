-- The group's own subscription: the given one, unless that one reads the group's history.
create or replace function postbus.group_of(subscription_id bigint) returns bigint
language sql stable as $$
    select coalesce(s.catch_up_of, s.id) from postbus.subscription s where s.id = group_of.subscription_id
$$;

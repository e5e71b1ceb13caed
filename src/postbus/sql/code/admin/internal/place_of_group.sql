-- Where a group stands, for the audit log: the ids that its lanes have come to.
create or replace function postbus.place_of_group(subscription_id bigint) returns jsonb
language sql stable as $$
    select jsonb_build_object('lowest_id', postbus.first_id(min(at.position)), 'highest_id', postbus.first_id(max(at.position)))
      from postbus.current_cursor c
     cross join lateral (select coalesce((c.cursor).done_position, ((c.cursor).seen).position) as position) as at
     where c.subscription_id = place_of_group.subscription_id
$$;

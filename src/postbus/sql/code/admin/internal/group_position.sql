-- The position of a group, for the audit log: the lowest and the highest id that its lanes have reached.
create or replace function postbus.group_position(subscription_id bigint) returns jsonb
language sql stable as $$
    select jsonb_build_object('lowest_id', postbus.first_id(min(at.sequence)), 'highest_id', postbus.first_id(max(at.sequence)))
      from postbus.current_cursor c
     cross join lateral (select coalesce((c.cursor).done_sequence, ((c.cursor).seen).sequence) as sequence) as at
     where c.subscription_id = group_position.subscription_id
$$;

-- The positions of those lanes of a group that no worker holds, the oldest first. Lanes at the same position are read together, and
-- stay together. is_on_its_way: the lanes are in the middle of a step.
create or replace function postbus.positions_to_buffer(subscription_id bigint, lease interval, as_of timestamptz) returns table (
    cursor           text,
    needs_target     boolean,
    is_on_its_way    boolean,
    lanes            integer[],
    numbers          bigint[],
    passed           bigint[]
)
language sql stable as $$
    select c.cursor::text as cursor, coalesce((c.cursor::text::postbus.log_cursor).target, (c.cursor::text::postbus.log_cursor).until)
           is null as needs_target, (c.cursor::text::postbus.log_cursor).target is not null as is_on_its_way,
           array_agg(c.lane order by c.lane) as lanes, array_agg(c.number order by c.lane) as numbers,
           array_agg(c.passed order by c.lane) as passed
      from postbus.current_cursor c
      join postbus.lane l on l.subscription_id = c.subscription_id and l.lane = c.lane
      left join postbus.worker w on w.name = l.holder
     where c.subscription_id = positions_to_buffer.subscription_id and (w.seen_at is null or w.seen_at < as_of - positions_to_buffer.lease)
     group by c.cursor::text
     order by min(c.at)
$$;

-- How long suspects wait for others to be tried alone before them: after each time that they took too long to be alone.
create or replace function postbus.behind_others(outlasted integer) returns interval
language sql immutable as $$
    select coalesce(outlasted, 0) * interval '5 seconds'
$$;

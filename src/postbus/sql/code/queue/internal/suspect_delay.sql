-- How long a suspect waits, so that others are tried before it: longer each time that it outlasted its time alone.
create or replace function postbus.suspect_delay(outlasted integer) returns interval
language sql immutable as $$
    select coalesce(outlasted, 0) * interval '5 seconds'
$$;

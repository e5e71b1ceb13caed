-- Whether every client can read a time: it is finite, and lies in the years 1 to 9999.
create or replace function postbus.is_a_time(at timestamptz) returns boolean
language sql immutable as $$
    select at between to_timestamp(-62135510400) and to_timestamp(253402214400)
$$;

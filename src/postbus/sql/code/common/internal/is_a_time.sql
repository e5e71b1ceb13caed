-- Whether a time is one that every client can read: neither infinite, nor before the year 1, nor after the year 9999.
create or replace function postbus.is_a_time(at timestamptz) returns boolean
language sql immutable as $$
    select at between to_timestamp(-62135510400) and to_timestamp(253402214400)
$$;

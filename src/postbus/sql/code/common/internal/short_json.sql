-- A value for the audit log. If it has more than 16 KiB, it is left out, and its size is given.
create or replace function postbus.short_json(value jsonb) returns jsonb
language sql immutable as $$
    select case when octet_length(value::text) > 16384 then jsonb_build_object('omitted_bytes', octet_length(value::text)) else value end
$$;

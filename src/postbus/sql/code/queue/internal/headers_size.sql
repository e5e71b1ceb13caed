-- The size of headers in memory, in bytes. Headers that come from a table may be compressed there.
create or replace function postbus.headers_size(headers jsonb) returns integer
language sql stable as $$
    select case when headers is null then 0
                when pg_column_compression(headers) is null then pg_column_size(headers)
                else octet_length(headers::text) end
$$;

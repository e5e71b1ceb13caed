-- How many bytes the names and values of headers have. Their size as jsonb is larger, unless they come compressed out of a table:
-- so only those need to be counted whose size is beyond the limit, or that are compressed.
create or replace function postbus.headers_bytes(headers jsonb) returns bigint
language sql immutable parallel safe
return (select sum(octet_length(header.key) + octet_length(header.value)) from jsonb_each_text(headers) as header);

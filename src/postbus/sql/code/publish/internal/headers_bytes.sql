-- The bytes of the names and values of headers. Their size as jsonb is larger, unless they come compressed from a table. So only
-- headers that are compressed, or whose jsonb size exceeds the limit, need to be counted.
create or replace function postbus.headers_bytes(headers jsonb) returns bigint
language sql immutable parallel safe
return (select sum(octet_length(header.key) + octet_length(header.value)) from jsonb_each_text(headers) as header);

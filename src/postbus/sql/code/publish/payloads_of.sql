-- The payloads of a segment, one by one: see publish_lines.
create or replace function postbus.payloads_of(payloads bytea[], count integer, in_lines boolean) returns bytea[]
language sql immutable parallel safe
return case when in_lines then postbus.lines_of(payloads[1], count) else payloads end;

-- pglz takes longer over the ids of a lease, a millisecond for a thousand, than all else that is done to them.
alter table postbus.lease alter column open_ids set storage external;

-- It takes the topic's columns that it needs instead of all of them.
drop function if exists postbus.append_segment(postbus.topic, integer, timestamptz, text, text[], text[], text[], jsonb[], bytea[], bigint, bigint, integer);

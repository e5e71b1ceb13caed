-- A batch takes its ids from the sequence 1024 at a time: to take them one by one was a tenth of publishing it.
alter sequence postbus.message_id increment by 1024;

-- JSON that is published in bulk is one value from its encoder to the disk and back: payloads then has one element, with a
-- line for each message. See publish_lines and payloads_of.
alter table postbus.segment add column in_lines boolean;

-- They have a parameter more.
drop function if exists postbus.append_segment(postbus.topic, integer, timestamptz, text, text[], text[], text[], jsonb[], bytea[], bigint, bigint);
drop function if exists postbus.read_leaf_sql(integer, integer, boolean);
drop function if exists postbus.read_log(text, integer[], text, integer, bigint, text);

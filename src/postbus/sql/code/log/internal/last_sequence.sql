-- The last sequence that was handed out in a log storage. To take a position, this is read first, before the reader has a
-- transaction id: see the type log_position.
create or replace function postbus.last_sequence(storage_id integer) returns bigint
language sql volatile as $$
    select (postbus.epoch(storage_id) << 43) + coalesce(pg_sequence_last_value('postbus.segment_number'), 0)
$$;

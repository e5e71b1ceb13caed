-- The last position handed out in a storage: the first thing to be read of a place, before the reader has
-- a transaction id. See the type log_place.
create or replace function postbus.last_position(storage_id integer) returns bigint
language sql volatile as $$
    select (postbus.epoch(storage_id) << 43) + coalesce(pg_sequence_last_value('postbus.log_position'), 0)
$$;

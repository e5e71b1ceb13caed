-- Appends a segment to a storage that is new: see epoch_sequence.
--
-- Writes: segment.
create or replace function postbus.append_to_new(segment postbus.segment) returns void
language plpgsql as $$
begin
    execute format('insert into postbus.%I select ($1).*', postbus.leaf_name(segment.storage_id, 1)) using segment;
end $$;

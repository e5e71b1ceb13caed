-- Whether the next partition should become the current one: the current one has messages, and has reached the period or the size
-- of its storage.
create or replace function postbus.partition_is_full(storage postbus.log_storage, epoch integer, as_of timestamptz) returns boolean
language plpgsql as $$
declare
    _partition regclass := format('postbus.%I', postbus.partition_name(storage.id, epoch))::regclass;
begin
    if pg_relation_size(_partition) = 0 then
        return false;
    end if;
    return (select l.opened_at from postbus.log_partition l where l.storage_id = storage.id and l.epoch = partition_is_full.epoch)
           <= as_of - postbus.partition_period(storage, as_of)
        or pg_total_relation_size(_partition) >= storage.partition_bytes;
end $$;

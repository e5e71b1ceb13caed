-- Whether the leaf that is written to should be followed by the next: it has messages, and its time or size is over.
create or replace function postbus.leaf_is_full(storage postbus.storage, epoch integer, as_of timestamptz) returns boolean
language plpgsql as $$
declare
    _leaf regclass := format('postbus.%I', postbus.leaf_name(storage.id, epoch))::regclass;
begin
    if pg_relation_size(_leaf) = 0 then
        return false;
    end if;
    return (select l.opened_at from postbus.log_leaf l where l.storage_id = storage.id and l.epoch = leaf_is_full.epoch)
           <= as_of - postbus.leaf_period(storage, as_of)
        or pg_total_relation_size(_leaf) >= storage.leaf_bytes;
end $$;

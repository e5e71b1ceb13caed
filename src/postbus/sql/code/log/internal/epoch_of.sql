-- The partition that a receipt goes to: that of its message, or the current one if there is no such partition.
create or replace function postbus.epoch_of(storage_id integer, epoch bigint) returns integer
language sql stable as $$
    select coalesce((select l.epoch from postbus.log_partition l where l.storage_id = epoch_of.storage_id and l.epoch = epoch_of.epoch),
                    (select max(l.epoch) from postbus.log_partition l where l.storage_id = epoch_of.storage_id
                        and l.epoch <= postbus.epoch(epoch_of.storage_id)))
$$;

-- Adds a partition to a log storage, for the segments of one epoch and their receipts. Writers and readers go on meanwhile: the
-- tables are created apart and then attached.
--
-- Writes: log_partition, a new table.
create or replace function postbus.add_partition(storage_id integer, epoch integer) returns void
language plpgsql as $$
declare
    _partition text := postbus.partition_name(storage_id, epoch);
    _has_lz4   boolean := exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals));
begin
    execute format('create table postbus.%I (like postbus.segment)', _partition);
    execute format(case when _has_lz4 then 'alter table postbus.%I alter column payloads set compression lz4'
                        else 'alter table postbus.%I alter column payloads set storage external' end, _partition);
    -- Rows are written once and dropped with the table: vacuum has nothing to do but to freeze them.
    execute format('alter table postbus.%I set (autovacuum_vacuum_insert_scale_factor = 1, toast_tuple_target = 8160)', _partition);
    execute format('create index on postbus.%I (topic_id, sequence, lane)', _partition);
    execute format('create index on postbus.%I (txid, topic_id)', _partition);
    execute format('alter table postbus.%I attach partition postbus.%I for values from (%s) to (%s)',
                   format('segment_%s', storage_id), _partition, epoch::bigint << 43, (epoch + 1)::bigint << 43);
    _partition := format('receipt_%s_%s', storage_id, epoch);
    execute format('create table postbus.%I (like postbus.receipt)', _partition);
    execute format('create index on postbus.%I (subscription_id, lane, at, number)', _partition);
    execute format('create index on postbus.%I (subscription_id, lane, number) where moved is not null', _partition);
    execute format('create index on postbus.%I (id, subscription_id) where id is not null', _partition);
    execute format('create index on postbus.%I (subscription_id, id) where deviates', _partition);
    execute format('alter table postbus.%I attach partition postbus.%I for values in (%s)', format('receipt_%s', storage_id), _partition, epoch);
    insert into postbus.log_partition (storage_id, epoch) values (add_partition.storage_id, add_partition.epoch);
end $$;

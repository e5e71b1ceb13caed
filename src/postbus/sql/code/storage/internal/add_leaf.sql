-- Adds a leaf to a storage, for the segments of one epoch and their receipts. Writers and readers go on meanwhile: the leaf is
-- made apart and then attached.
--
-- Writes: log_leaf, a new table.
create or replace function postbus.add_leaf(storage_id integer, epoch integer) returns void
language plpgsql as $$
declare
    _leaf    text := postbus.leaf_name(storage_id, epoch);
    _has_lz4 boolean := exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals));
begin
    execute format('create table postbus.%I (like postbus.segment)', _leaf);
    execute format(case when _has_lz4 then 'alter table postbus.%I alter column payloads set compression lz4'
                        else 'alter table postbus.%I alter column payloads set storage external' end, _leaf);
    -- Rows are written once and dropped with the table: vacuum has nothing to do but to freeze them.
    execute format('alter table postbus.%I set (autovacuum_vacuum_insert_scale_factor = 1, toast_tuple_target = 8160)', _leaf);
    execute format('create index on postbus.%I (topic_id, position, lane)', _leaf);
    execute format('create index on postbus.%I (txid, topic_id)', _leaf);
    execute format('alter table postbus.%I attach partition postbus.%I for values from (%s) to (%s)',
                   format('segment_%s', storage_id), _leaf, epoch::bigint << 43, (epoch + 1)::bigint << 43);
    _leaf := format('receipt_%s_%s', storage_id, epoch);
    execute format('create table postbus.%I (like postbus.receipt)', _leaf);
    execute format('create index on postbus.%I (subscription_id, lane, at, number)', _leaf);
    execute format('create index on postbus.%I (subscription_id, lane, number) where moved is not null', _leaf);
    execute format('create index on postbus.%I (id, subscription_id) where id is not null', _leaf);
    execute format('create index on postbus.%I (subscription_id, id) where odd', _leaf);
    execute format('alter table postbus.%I attach partition postbus.%I for values in (%s)', format('receipt_%s', storage_id), _leaf, epoch);
    insert into postbus.log_leaf (storage_id, epoch) values (add_leaf.storage_id, add_leaf.epoch);
end $$;

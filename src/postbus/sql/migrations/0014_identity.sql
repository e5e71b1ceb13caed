-- What tells the messages of this database from those of all others: it belongs to the data, and not to the server, so it stays
-- over failover, upgrades and restores. A copy that runs beside the original gets another one: see rebase.
alter table postbus.cluster add column source uuid not null default gen_random_uuid();
drop function if exists postbus.source_name(), postbus.rebase();

-- What carries messages over has more to tell of each.
drop function if exists
    postbus.import_messages(text, text, text[], bytea[], text, text[], jsonb[], text[], timestamptz[], integer[], boolean);

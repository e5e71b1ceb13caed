-- The last number of a segment that was handed out when a row of the ledger was written. In a database that was restored into
-- another server, segments with higher numbers may have been published there: the cursor's transaction ids tell nothing of them.
alter table postbus.cursor add column handed_out bigint not null default coalesce(pg_sequence_last_value('postbus.log_position'), 0);

-- It returns what it tells.
drop function if exists postbus.tell(bigint, boolean);

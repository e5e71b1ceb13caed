-- The last number of a segment that was handed out when a row of the ledger was written. In a database that was restored into
-- another server, segments with higher numbers may have been published there: the cursor's transaction ids tell nothing of them.
-- Of the rows that are there, the position of the place tells it.
alter table postbus.cursor add column handed_out bigint;
update postbus.cursor c
   set handed_out = coalesce(greatest(((c.cursor).seen).position, ((c.cursor).target).position), 0) & 8796093022207;
alter table postbus.cursor
    alter column handed_out set default coalesce(pg_sequence_last_value('postbus.log_position'), 0),
    alter column handed_out set not null;

-- It returns what it tells.
drop function if exists postbus.tell(bigint, boolean);

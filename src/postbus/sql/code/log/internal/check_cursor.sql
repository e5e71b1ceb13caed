-- Refuses a cursor that is ahead of this server's transaction ids: it belongs to the server that was dumped.
create or replace function postbus.check_cursor(cursor postbus.log_cursor, snapshot pg_snapshot) returns void
language plpgsql as $$
begin
    -- A cursor that this transaction has just set is at its own id, which a snapshot shows only when older ones have ended.
    if pg_snapshot_xmax(snapshot) <= (cursor.seen).txid and pg_snapshot_xmax(pg_current_snapshot()) < (cursor.seen).txid
       and (cursor.seen).txid is distinct from pg_current_xact_id_if_assigned() then
        perform postbus.refuse('PB507', 'cursors are ahead of this server''s transaction ids: the database was restored from a dump',
            'run: postbus rebase; for a copy that runs beside the original: postbus rebase --as-copy');
    end if;
end $$;

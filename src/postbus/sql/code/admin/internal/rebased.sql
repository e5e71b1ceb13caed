-- A cursor for a database that was restored into another server, where all segments have the same old transaction id: the first
-- segment of its lane that it had not seen is ahead of it, and all after that. Numbers above handed_out were handed out on the new
-- server.
--
-- is_kept: the cursor is the beginning or the end of a stretch. If it has an end, the first segment beyond that is ahead of it.
create or replace function postbus.rebased(
    cursor     postbus.log_cursor,
    storage_id integer,
    topic_id   bigint,
    lane       integer,
    handed_out bigint,
    "position" postbus.log_position,
    is_kept    boolean default false
) returns postbus.log_cursor
language plpgsql stable as $$
declare
    -- Segments that were published on this server have transaction ids that mean nothing to the cursor, but higher numbers.
    _first bigint := (select min(g.sequence) from postbus.segment g
                       where g.storage_id = rebased.storage_id and g.topic_id = rebased.topic_id and g.lane = rebased.lane
                         and (g.sequence & 8796093022207 > handed_out
                              and ((cursor).since_snapshot is null or g.published_at >= (cursor).since_at)
                              or postbus.unseen_in_segment(cursor, g.sequence, g.txid, g.count, g.published_at) > 0
                              or is_kept and not pg_visible_in_snapshot(g.txid, ((cursor).until).snapshot)));
begin
    return row(case when _first is null then position else row(_first - 1, '2', '3:3:')::postbus.log_position end,
               case when _first is not null then position end,
               case when _first is not null then _first end,
               case when _first = (cursor).done_sequence then (cursor).done_index
                    when _first is not null then -1 end,
               case when (cursor).since_snapshot is null or (cursor).since_id is not null then (cursor).since_bound end,
               case when (cursor).since_snapshot is null then (cursor).since_at end,
               (cursor).since_id,
               case when (cursor).until is not null and not is_kept then position end,
               null)::postbus.log_cursor;
end $$;

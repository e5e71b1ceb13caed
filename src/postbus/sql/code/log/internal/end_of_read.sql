-- The last row of read_log: the cursor after reading up to a position, or up to the sequence at which the read stopped. Without a
-- position the cursor stays as it is.
create or replace function postbus.end_of_read(cursor postbus.log_cursor, target postbus.log_position, stopped_at bigint)
returns postbus.log_row
language sql stable parallel safe
return row(
    null, null, null, null, null, null, null, null, null, null, null, null,
    case
        when target is null then cursor
        when stopped_at is not null
        then row((cursor).seen, target, stopped_at, 1024,
                 (cursor).since_bound, (cursor).since_at, (cursor).since_id, (cursor).until, (cursor).since_snapshot)::postbus.log_cursor
        when (cursor).since_snapshot is null
        then row(target, null, null, null, (cursor).since_bound, (cursor).since_at, (cursor).since_id, (cursor).until, null)::postbus.log_cursor
        -- All that since_snapshot shows has been seen: without it, groups come to the same position.
        else row(target, null, null, null, case when (cursor).since_id is not null then (cursor).since_bound end,
                 null, (cursor).since_id, (cursor).until, null)::postbus.log_cursor
    end::text,
    case when target is not null then row((cursor).seen, target, coalesce((cursor).done_sequence, 0), coalesce((cursor).done_index, -1),
        (cursor).since_bound, (cursor).since_at, (cursor).since_id, (cursor).until, (cursor).since_snapshot)::postbus.log_cursor::text end,
    stopped_at is not null,
    target::text
)::postbus.log_row;

-- How many messages of a segment a cursor has before it: the same rules as in read_log, for who looks at all of a leaf.
create or replace function postbus.unseen(
    cursor       postbus.log_cursor,
    "position"   bigint,
    txid         xid8,
    count        integer,
    published_at timestamptz
) returns integer
language sql immutable parallel safe
return case
    when pg_visible_in_snapshot(txid, ((cursor).seen).snapshot) then 0
    when not pg_visible_in_snapshot(txid, ((cursor).until).snapshot) then 0
    when txid > ((cursor).seen).txid and position <= ((cursor).seen).position then 0
    when position < (cursor).done_position and pg_visible_in_snapshot(txid, ((cursor).target).snapshot) then 0
    when position <= (cursor).since_bound
         and (published_at < (cursor).since_at and pg_visible_in_snapshot(txid, (cursor).since_snapshot) is not false
              or postbus.first_id(position) + count <= (cursor).since_id) then 0
    else count - greatest(case when position = (cursor).done_position then least((cursor).done_index + 1, count) end,
                          case when position <= (cursor).since_bound and postbus.first_id(position) = (cursor).since_id & -1024
                               then ((cursor).since_id & 1023)::integer end,
                          0)
end;

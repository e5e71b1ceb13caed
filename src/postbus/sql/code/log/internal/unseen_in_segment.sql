-- How many messages of a segment are ahead of a cursor. The same rules as in read_log, for functions that read a whole partition.
create or replace function postbus.unseen_in_segment(
    cursor       postbus.log_cursor,
    sequence     bigint,
    txid         xid8,
    count        integer,
    published_at timestamptz
) returns integer
language sql immutable parallel safe
return case
    when pg_visible_in_snapshot(txid, ((cursor).seen).snapshot) then 0
    when not pg_visible_in_snapshot(txid, ((cursor).until).snapshot) then 0
    when txid > ((cursor).seen).txid and sequence <= ((cursor).seen).sequence then 0
    when sequence < (cursor).done_sequence and pg_visible_in_snapshot(txid, ((cursor).target).snapshot) then 0
    when sequence <= (cursor).since_bound
         and (published_at < (cursor).since_at and pg_visible_in_snapshot(txid, (cursor).since_snapshot) is not false
              or postbus.first_id(sequence) + count <= (cursor).since_id) then 0
    else count - greatest(case when sequence = (cursor).done_sequence then least((cursor).done_index + 1, count) end,
                          case when sequence <= (cursor).since_bound and postbus.first_id(sequence) = (cursor).since_id & -1024
                               then ((cursor).since_id & 1023)::integer end,
                          0)
end;

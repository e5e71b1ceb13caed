-- Whether a cursor may follow another one of its lane: read_log returned it, or it is as harmless as such a cursor. It has seen
-- what the earlier one had seen, has no position in the future, and leaves out no later messages. last_number is the number of the
-- last segment, and xid the last transaction. Partitions are checked elsewhere: see last_epoch.
--
-- Sequences and transaction ids may go back, since groups that read up to the same target stand at that position afterwards: see
-- next_position.
create or replace function postbus.may_follow(cursor postbus.log_cursor, before postbus.log_cursor, last_number bigint, xid xid8)
returns boolean
language sql stable parallel safe
return (
    ((cursor).seen).sequence >= 0
    and pg_snapshot_xmax(((cursor).seen).snapshot) >= pg_snapshot_xmax(((before).seen).snapshot)
    and ((cursor).seen).txid <= xid
    and pg_snapshot_xmax(((cursor).seen).snapshot) <= xid
    and ((cursor).seen).sequence & 8796093022207 <= last_number
    and case
            when (cursor).done_sequence is null then true
            else (cursor).done_sequence & 8796093022207 <= last_number and (cursor).done_sequence >= 0 and (cursor).done_index >= -1
        end
    and case
            when (cursor).target is not distinct from null then true
            else ((cursor).target).sequence & 8796093022207 <= last_number
                 and ((cursor).target).sequence >= 0
                 and ((cursor).target).txid <= xid
                 and pg_snapshot_xmax(((cursor).target).snapshot) <= xid
        end
    and ((cursor).since_bound is null or (cursor).since_bound = (before).since_bound)
    and ((cursor).since_at is null or (cursor).since_at = (before).since_at)
    and (cursor).since_id is not distinct from (before).since_id
    and ((cursor).since_snapshot is null or (cursor).since_snapshot::text = (before).since_snapshot::text)
    and case
            when (before).until is null then (cursor).until is not distinct from null
            else (cursor).until::text = (before).until::text
        end
) is true;

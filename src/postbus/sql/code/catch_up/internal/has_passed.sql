-- Whether a cursor is past a closed leaf, so that nothing of the leaf need be looked at.
create or replace function postbus.has_passed(cursor postbus.log_cursor, leaf postbus.log_leaf) returns boolean
language sql immutable parallel safe
return ((cursor).target is null and ((cursor).seen).position >= ((leaf).epoch + 1)::bigint << 43
        and pg_snapshot_xmin(((cursor).seen).snapshot) >= (leaf).closed_txid) is true;

-- Whether a cursor is past a closed partition, so that nothing in it has to be read.
create or replace function postbus.has_passed(cursor postbus.log_cursor, partition postbus.log_partition) returns boolean
language sql immutable parallel safe
return ((cursor).target is null and ((cursor).seen).sequence >= ((partition).epoch + 1)::bigint << 43
        and pg_snapshot_xmin(((cursor).seen).snapshot) >= (partition).closed_txid) is true;

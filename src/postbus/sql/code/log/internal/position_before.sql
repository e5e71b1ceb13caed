-- A position before all messages of a log storage that were published at a time or later, and, if a snapshot is given, before
-- those that it does not show: the beginning of a partition.
create or replace function postbus.position_before(storage_id integer, at timestamptz, snapshot pg_snapshot default null) returns postbus.log_position
language sql stable
return row(coalesce((select min(l.epoch)::bigint << 43 from postbus.log_partition l
                      where l.storage_id = position_before.storage_id
                        and (l.closed_at is null or l.closed_at >= at or l.closed_txid > pg_snapshot_xmin(snapshot))), 0),
           '2', '3:3:')::postbus.log_position;

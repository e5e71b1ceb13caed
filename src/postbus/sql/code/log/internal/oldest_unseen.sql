-- The time at which the first message ahead of a cursor in a lane was published; null if there is none.
create or replace function postbus.oldest_unseen(topic postbus.topic, cursor postbus.log_cursor, lane integer) returns timestamptz
language plpgsql stable as $$
declare
    _seen      postbus.log_position := cursor.seen;
    _late      xid8[] := array(select x from pg_snapshot_xip(_seen.snapshot) as x where x <= _seen.txid);
    _partition integer;
    _found     postbus.log_row;
begin
    for _partition in
        select l.epoch from postbus.log_partition l
         where l.storage_id = topic.storage_id
           and ((l.epoch + 1)::bigint << 43 > greatest(_seen.sequence + 1, cursor.done_sequence) or l.closed_txid is null
                or l.closed_txid > least(_late[1], pg_snapshot_xmax(_seen.snapshot)))
         order by l.epoch
    loop
        begin
            for _found in execute postbus.read_partition_sql(topic.storage_id, _partition, true, true)
                using topic.id, array[lane], greatest(_seen.sequence + 1, cursor.done_sequence), _seen.txid, _seen.snapshot,
                      pg_current_snapshot(), 2, _late, pg_snapshot_xmax(_seen.snapshot), coalesce(cursor.done_sequence, 0),
                      cursor.since_bound, cursor.since_at, cursor.since_id, coalesce(cursor.done_index, -1), cursor.since_snapshot
            loop
                continue when _found.sequence = cursor.done_sequence and cursor.done_index >= _found.count - 1;
                return _found.published_at;
            end loop;
        exception when undefined_table then
            continue;       -- dropped meanwhile
        end;
    end loop;
    return null;
end $$;

-- When the first message that a cursor has before it in a lane was published; null where there is none.
create or replace function postbus.oldest_unseen(topic postbus.topic, cursor postbus.log_cursor, lane integer) returns timestamptz
language plpgsql stable as $$
declare
    _seen  postbus.log_place := cursor.seen;
    _late  xid8[] := array(select x from pg_snapshot_xip(_seen.snapshot) as x where x <= _seen.txid);
    _leaf  integer;
    _found postbus.log_row;
begin
    for _leaf in
        select l.epoch from postbus.log_leaf l
         where l.storage_id = topic.storage_id
           and ((l.epoch + 1)::bigint << 43 > greatest(_seen.position + 1, cursor.done_position) or l.closed_txid is null
                or l.closed_txid > least(_late[1], pg_snapshot_xmax(_seen.snapshot)))
         order by l.epoch
    loop
        begin
            for _found in execute postbus.read_leaf_sql(topic.storage_id, _leaf, true, true)
                using topic.id, array[lane], greatest(_seen.position + 1, cursor.done_position), _seen.txid, _seen.snapshot,
                      pg_current_snapshot(), 2, _late, pg_snapshot_xmax(_seen.snapshot), coalesce(cursor.done_position, 0),
                      cursor.since_bound, cursor.since_at, cursor.since_id, coalesce(cursor.done_index, -1), cursor.since_snapshot
            loop
                continue when _found.position = cursor.done_position and cursor.done_index >= _found.count - 1;
                return _found.published_at;
            end loop;
        exception when undefined_table then
            continue;       -- dropped meanwhile
        end;
    end loop;
    return null;
end $$;

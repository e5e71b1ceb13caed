-- The query that reads one leaf for read_log, with these parameters: 1 topic, 2 lanes, 3 since position,
-- 4 seen txid, 5 seen snapshot, 6 target snapshot, 7 limit, 8 late txids, 9 seen xmax, 10 done position, 11 since bound,
-- 12 since time, 13 since id, 14 done index, 15 since snapshot. Its rows are log_rows.
--
-- What a snapshot does not show are the transactions that it lists as open, and all from its xmax on. Most of their
-- segments lie above the seen position: one range of an index. Only transactions up to the seen txid can have some
-- below it, and those few are looked up by id: by what is added to the other columns, no other index fits.
create or replace function postbus.read_leaf_sql(storage_id integer, epoch integer, has_late boolean, in_lines boolean) returns text
language plpgsql immutable as $$
declare
    _leaf    text := format('postbus.%I', postbus.leaf_name(storage_id, epoch));
    _columns text := 's.position, s.lane, s.count, s.bytes,
                      greatest(case when s.position = $10 then $14 + 1 else 0 end,
                               case when s.position <= $11 and postbus.first_id(s.position) = $13 & -1024 then ($13 & 1023)::integer else 0 end)
                          as first_index,
                      s.published_at, s.content_type, s.content_types, s.keys, s.correlation_ids, s.headers::text[] as headers, '
                      || case when in_lines then 's.payloads' else 'postbus.payloads_of(s.payloads, s.count, s.in_lines)' end || ' as payloads,
                      null::text as next_cursor, null::text as during_cursor, null::boolean as more, null::text as read_target';
    _since   text := '(s.position <= $11 and (s.published_at < $12 and pg_visible_in_snapshot(s.txid, $15) is not false
                                               or postbus.first_id(s.position) + s.count <= $13)) is not true';
    _later   text;
    _late    text;
begin
    _later := format(
        'select %s from %s s
          where s.topic_id = $1 and s.position >= $3 and s.lane = any ($2)
            and not pg_visible_in_snapshot(s.txid, $5) and pg_visible_in_snapshot(s.txid, $6) and %s
          order by s.topic_id, s.position limit $7', _columns, _leaf, _since);
    if not has_late then
        return _later;
    end if;
    _late := format(
        'select %s from %s s
          where s.txid %%s and s.topic_id + 0 = $1 and s.lane = any ($2) and s.position + 0 >= $10 and s.position + 0 < $3
            and pg_visible_in_snapshot(s.txid, $6) and %s
          order by s.position + 0 limit $7', _columns, _leaf, _since);
    return format('select * from ((%s) union all (%s) union all (%s)) as unseen order by position limit $7',
                  _later, format(_late, '= any ($8)'), format(_late, '>= $9 and s.txid <= $4'));
end $$;

-- The query that reads one partition for read_log, with these parameters: 1 topic, 2 lanes, 3 since sequence, 4 seen txid, 5 seen
-- snapshot, 6 target snapshot, 7 limit, 8 late txids, 9 seen xmax, 10 done sequence, 11 since bound, 12 since time, 13 since id,
-- 14 done index, 15 since snapshot. Its rows are log_rows.
--
-- A snapshot does not show the transactions that it lists as open, and all from its xmax on. Most of their segments lie above the
-- seen sequence, in one range of an index. Only transactions up to the seen txid can have some below it. These few are looked up
-- by id; zero is added to the other columns, so that no other index fits.
create or replace function postbus.read_partition_sql(storage_id integer, epoch integer, has_late boolean, in_lines boolean) returns text
language plpgsql immutable as $$
declare
    _partition text := format('postbus.%I', postbus.partition_name(storage_id, epoch));
    _columns   text := 's.sequence, s.lane, s.count, s.bytes,
                      greatest(case when s.sequence = $10 then $14 + 1 else 0 end,
                               case when s.sequence <= $11 and postbus.first_id(s.sequence) = $13 & -1024 then ($13 & 1023)::integer else 0 end)
                          as first_index,
                      s.published_at, s.content_type, s.content_types, s.keys, s.correlation_ids, s.headers::text[] as headers, '
                      || case when in_lines then 's.payloads' else 'postbus.payloads_of(s.payloads, s.count, s.in_lines)' end || ' as payloads,
                      null::text as next_cursor, null::text as during_cursor, null::boolean as more, null::text as read_target';
    _since   text := '(s.sequence <= $11 and (s.published_at < $12 and pg_visible_in_snapshot(s.txid, $15) is not false
                                               or postbus.first_id(s.sequence) + s.count <= $13)) is not true';
    _later   text;
    _late    text;
begin
    _later := format(
        'select %s from %s s
          where s.topic_id = $1 and s.sequence >= $3 and s.lane = any ($2)
            and not pg_visible_in_snapshot(s.txid, $5) and pg_visible_in_snapshot(s.txid, $6) and %s
          order by s.topic_id, s.sequence limit $7', _columns, _partition, _since);
    if not has_late then
        return _later;
    end if;
    _late := format(
        'select %s from %s s
          where s.txid %%s and s.topic_id + 0 = $1 and s.lane = any ($2) and s.sequence + 0 >= $10 and s.sequence + 0 < $3
            and pg_visible_in_snapshot(s.txid, $6) and %s
          order by s.sequence + 0 limit $7', _columns, _partition, _since);
    return format('select * from ((%s) union all (%s) union all (%s)) as unseen order by sequence limit $7',
                  _later, format(_late, '= any ($8)'), format(_late, '>= $9 and s.txid <= $4'));
end $$;

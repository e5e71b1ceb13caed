-- The scan floor after a claim that began with `snapshot` and took what it found.
--
-- Finds the first message that is left above the old scan floor. A message that is still visible was skipped, because another
-- claimer had locked it or because it lies beyond a limit. It is not known yet whether that message will be taken, so the scan
-- floor stops before it.
create or replace function postbus.raise_scan_floor(
    scan_floor    postbus.scan_floor,
    topic_id      bigint,
    snapshot      pg_snapshot,
    delays_due_at timestamptz
) returns postbus.scan_floor
language plpgsql as $$
begin
    -- Transactions that were open when the scan floor was taken have messages left: the scan floor stays.
    if cardinality(scan_floor.open) > 0 and exists (
        select from generate_series(0, 9) as level (priority)
          join postbus.queued q
            on q.topic_id = raise_scan_floor.topic_id and q.priority = level.priority and not q.parked
           and q.txid = any (scan_floor.open) and q.txid < coalesce(scan_floor.txids[level.priority + 1], scan_floor.xmax, '0'))
    then
        return scan_floor;
    end if;

    -- At and above the snapshot's xmax there may be open transactions that it does not list.
    select array_agg(waiting.txid order by level.priority), array_agg(waiting.id - 1 order by level.priority)
      into scan_floor.txids, scan_floor.ids
      from generate_series(0, 9) as level (priority)
      left join lateral (
           select q.txid, q.id from postbus.queued q
            where q.topic_id = raise_scan_floor.topic_id and q.priority = level.priority and not q.parked
              and (q.txid, q.id) > (coalesce(scan_floor.txids[level.priority + 1], scan_floor.xmax, '0'),
                                    coalesce(scan_floor.ids[level.priority + 1], 0))
            order by q.topic_id, q.priority, q.txid, q.id
            limit 1) as waiting on waiting.txid < pg_snapshot_xmax(raise_scan_floor.snapshot)
    having count(waiting.id) > 0;
    scan_floor.xmax := pg_snapshot_xmax(snapshot);
    scan_floor.open := array(select pg_snapshot_xip(snapshot));
    scan_floor.delays_due_at := delays_due_at;
    scan_floor.used := 0;
    return scan_floor;
end $$;

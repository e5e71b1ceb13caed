-- The floor after a claim, which began with a snapshot and has taken what it found.
--
-- Looks for what is left above the old floor. What is still visible was skipped, because somebody else
-- had locked it, or lies beyond a limit. Whether it will be taken is not known yet, so the floor stops
-- before it.
create or replace function postbus.raise_floor(
    floor         postbus.queue_floor,
    topic_id      bigint,
    snapshot      pg_snapshot,
    delays_due_at timestamptz
) returns postbus.queue_floor
language plpgsql as $$
begin
    -- Transactions that were open at the floor have something left: it stays.
    if cardinality(floor.open) > 0 and exists (
        select from generate_series(0, 9) as level (priority)
          join postbus.queued q
            on q.topic_id = raise_floor.topic_id and q.priority = level.priority and not q.parked
           and q.txid = any (floor.open) and q.txid < coalesce(floor.txids[level.priority + 1], floor.xmax, '0'))
    then
        return floor;
    end if;

    -- At and above the snapshot's xmax there may be open transactions that it does not list.
    select array_agg(waiting.txid order by level.priority), array_agg(waiting.id - 1 order by level.priority)
      into floor.txids, floor.ids
      from generate_series(0, 9) as level (priority)
      left join lateral (
           select q.txid, q.id from postbus.queued q
            where q.topic_id = raise_floor.topic_id and q.priority = level.priority and not q.parked
              and (q.txid, q.id) > (coalesce(floor.txids[level.priority + 1], floor.xmax, '0'),
                                    coalesce(floor.ids[level.priority + 1], 0))
            order by q.topic_id, q.priority, q.txid, q.id
            limit 1) as waiting on waiting.txid < pg_snapshot_xmax(raise_floor.snapshot)
    having count(waiting.id) > 0;
    floor.xmax := pg_snapshot_xmax(snapshot);
    floor.open := array(select pg_snapshot_xip(snapshot));
    floor.delays_due_at := delays_due_at;
    floor.used := 0;
    return floor;
end $$;

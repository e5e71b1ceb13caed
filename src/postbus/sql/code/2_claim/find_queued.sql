-- Finds and locks up to max_count messages of a topic that may be claimed: the highest priority
-- first, then in the order in which their transactions began to write. Stops at max_bytes of
-- payload, but finds at least one. `more` says that a limit ended the search.
--
-- Never waits: rows that another member is claiming are skipped. What the floor is, is told at its type.
--
-- The caller takes all that was found out of the index queued_claim_idx, or keeps the floor that it had.
--
-- Locks: queued rows (skip locked).
create or replace function postbus.find_queued(
    topic_id    bigint,
    max_count   integer,
    max_bytes   bigint,
    inout floor postbus.queue_floor,
    out tids    tid[],
    out more    boolean
)
language plpgsql as $$
declare
    _priorities integer[];
    _priority   integer;
    _slot       integer;
    _snapshot   pg_snapshot;
    _part       record;
begin
    tids := array[]::tid[];
    more := false;
    if floor.txids is null then
        floor.snapshots := array_fill(null::pg_snapshot, array[10]);
        floor.txids := array_fill(null::xid8, array[10]);
        floor.ids := array_fill(null::bigint, array[10]);
    end if;

    _snapshot := pg_current_snapshot();
    select coalesce(array_agg(level.priority order by level.priority desc), array[]::integer[]) into _priorities
      from generate_series(0, 9) as level (priority)
     where exists (select from postbus.queued q
                    where q.topic_id = find_queued.topic_id and q.priority = level.priority and not q.parked
                      and (q.txid, q.id) > (coalesce(floor.txids[level.priority + 1], '0'), coalesce(floor.ids[level.priority + 1], 0)))
        or exists (select from postbus.queued q
                    where q.topic_id = find_queued.topic_id and q.priority = level.priority and not q.parked
                      and q.txid = any (array(select pg_snapshot_xip(floor.snapshots[level.priority + 1]))));
    for _slot in 1..10 loop
        if floor.txids[_slot] is not null and _slot - 1 <> all (_priorities) then
            floor.snapshots[_slot] := _snapshot;            -- nothing is left up to here
            floor.txids[_slot] := pg_snapshot_xmax(_snapshot);
            floor.ids[_slot] := 0;
        end if;
    end loop;

    foreach _priority in array _priorities loop
        _slot := _priority + 1;
        _snapshot := pg_current_snapshot();
        with late as (          -- of transactions that were open when the floor was taken
            select q.ctid, q.txid, q.id, length(q.payload) as size from postbus.queued q
             where q.topic_id = find_queued.topic_id and q.priority = _priority and not q.parked
               and q.txid = any (array(select pg_snapshot_xip(floor.snapshots[_slot]))) and q.txid < floor.txids[_slot]
             limit max_count for update skip locked
        ), above as (
            select q.ctid, q.txid, q.id, length(q.payload) as size from postbus.queued q
             where q.topic_id = find_queued.topic_id and q.priority = _priority and not q.parked
               and (q.txid, q.id) > (coalesce(floor.txids[_slot], '0'), coalesce(floor.ids[_slot], 0))
             order by q.topic_id, q.priority, q.txid, q.id
             limit max_count - (select count(*) from late) for update skip locked
        ), candidate as (
            select true as is_late, late.* from late union all select false, above.* from above
        ), counted as (
            select candidate.*, sum(size) over (rows unbounded preceding) as bytes from candidate
        )
        select array_agg(ctid) filter (where bytes - size < max_bytes) as tids,
               coalesce(array_agg(id) filter (where not is_late and bytes - size < max_bytes), array[]::bigint[]) as ids,
               max(bytes) filter (where bytes - size < max_bytes) as bytes,
               count(*) = max_count or coalesce(max(bytes - size) >= max_bytes, false) as more
          into _part
          from counted;
        floor := postbus.raise_floor(floor, topic_id, _priority, _snapshot, _part.ids);
        tids := tids || _part.tids;
        more := _part.more;
        max_count := max_count - coalesce(cardinality(_part.tids), 0);
        max_bytes := max_bytes - coalesce(_part.bytes, 0);
        exit when max_count <= 0 or max_bytes <= 0;
    end loop;
end $$;

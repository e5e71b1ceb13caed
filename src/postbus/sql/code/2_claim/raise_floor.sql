-- The floor after a search of one priority, which began with a snapshot and locked the rows `ids`, in order.
--
-- Looks at the same rows again, without locks. What is visible and not ours was skipped, because somebody
-- else had locked it, or lies beyond a limit. Whether it will be taken is not known yet, so the floor stops
-- before it.
create or replace function postbus.raise_floor(
    floor    postbus.queue_floor,
    topic_id bigint,
    priority integer,
    snapshot pg_snapshot,
    ids      bigint[]
) returns postbus.queue_floor
language plpgsql as $$
declare
    _slot  integer := priority + 1;
    _seen  bigint[];
    _txids xid8[];
    _ours  integer;
begin
    -- Transactions that were open at the floor have something left: it stays.
    if exists (select from postbus.queued q
                where q.topic_id = raise_floor.topic_id and q.priority = raise_floor.priority and not q.parked
                  and q.txid = any (array(select pg_snapshot_xip(floor.snapshots[_slot]))) and q.txid < floor.txids[_slot])
    then
        return floor;
    end if;
    select array_agg(seen.id), array_agg(seen.txid) into _seen, _txids
      from (select q.id, q.txid from postbus.queued q
             where q.topic_id = raise_floor.topic_id and q.priority = raise_floor.priority and not q.parked
               and (q.txid, q.id) > (coalesce(floor.txids[_slot], '0'), coalesce(floor.ids[_slot], 0))
             order by q.topic_id, q.priority, q.txid, q.id
             limit cardinality(ids) + 1) as seen;
    select coalesce(min(pair.n) - 1, cardinality(ids)) into _ours
      from unnest(_seen, ids) with ordinality as pair (seen_id, our_id, n)
     where pair.seen_id is distinct from pair.our_id;

    if _ours = cardinality(ids) and cardinality(_seen) = _ours then     -- nothing else is visible
        floor.snapshots[_slot] := snapshot;
        floor.txids[_slot] := pg_snapshot_xmax(snapshot);
        floor.ids[_slot] := 0;
    elsif _ours > 0 then
        -- At and above xmax there may be open transactions that the snapshot does not list.
        floor.snapshots[_slot] := snapshot;
        floor.ids[_slot] := case when _txids[_ours] < pg_snapshot_xmax(snapshot) then _seen[_ours] else 0 end;
        floor.txids[_slot] := least(_txids[_ours], pg_snapshot_xmax(snapshot));
    end if;
    return floor;
end $$;

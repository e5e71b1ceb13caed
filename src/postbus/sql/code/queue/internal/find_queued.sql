-- Finds and locks up to max_count messages of a topic that may be claimed: the highest priority first, then in the order in which
-- their transactions began to write. Stops at max_bytes of payload, but finds at least one. `more` says that a limit ended the
-- search.
--
-- Never waits: rows that another member is claiming are skipped. For the scan floor, see the type scan_floor.
--
-- Locks: queued rows (skip locked).
create or replace function postbus.find_queued(
    topic_id   bigint,
    max_count  integer,
    max_bytes  bigint,
    scan_floor postbus.scan_floor,
    out tids   tid[],
    out more   boolean
)
language plpgsql as $$
declare
    _sizes bigint[];
    _bytes bigint;
begin
    -- The limit stops the search in the middle: no row is locked that was not asked for.
    select array_agg(candidate.ctid), array_agg(candidate.size), sum(candidate.size), count(*) = max_count
      into tids, _sizes, _bytes, more
      from (select waiting.ctid, waiting.size
              from generate_series(9, 0, -1) as level (priority)
             cross join lateral (
                   select late.* from (     -- of transactions that were open when the scan floor was taken
                        select q.ctid, length(q.payload) + postbus.headers_size(q.headers) as size from postbus.queued q
                         where q.topic_id = find_queued.topic_id and q.priority = level.priority and not q.parked
                           and q.txid = any (scan_floor.open) and q.txid < coalesce(scan_floor.txids[level.priority + 1], scan_floor.xmax, '0')
                           for update skip locked) as late
                   union all
                   select above.* from (
                        select q.ctid, length(q.payload) + postbus.headers_size(q.headers) as size from postbus.queued q
                         where q.topic_id = find_queued.topic_id and q.priority = level.priority and not q.parked
                           and (q.txid, q.id) > (coalesce(scan_floor.txids[level.priority + 1], scan_floor.xmax, '0'),
                                                 coalesce(scan_floor.ids[level.priority + 1], 0))
                         order by q.topic_id, q.priority, q.txid, q.id
                           for update skip locked) as above
                   ) as waiting
             limit max_count) as candidate;
    if _bytes > max_bytes then
        more := true;
        tids := tids[:(select count(*)
                         from (select sum(one.size) over (rows unbounded preceding) - one.size as bytes_before
                                 from unnest(_sizes) as one (size)) as counted
                        where counted.bytes_before < max_bytes)];
    end if;
end $$;

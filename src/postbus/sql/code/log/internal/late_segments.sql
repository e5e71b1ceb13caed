-- The segments of a topic in shared log storage that were published before a cursor's position and committed after it: from the
-- sequence `low` on, and below `since`. `open` are the transactions that the cursor's snapshot shows as open.
--
-- One plain select, so that it becomes part of the query of read_partitions and reads no more segments than that query fetches.
create or replace function postbus.late_segments(
    storage_id   integer,
    topic_id     bigint,
    lanes        integer[],
    cursor       postbus.log_cursor,
    open         xid8[],
    low          bigint,
    since        bigint,
    snapshot     pg_snapshot,
    in_lines     boolean,
    max_segments integer
) returns setof postbus.log_row
language sql stable as $$
    select late.sequence, late.lane, late.count, late.bytes,
           case when late.sequence = (cursor).done_sequence then (cursor).done_index + 1 else 0 end,
           late.published_at, late.content_type, late.content_types, late.keys, late.correlation_ids, late.headers::text[],
           case when late_segments.in_lines then late.payloads else postbus.payloads_of(late.payloads, late.count, late.in_lines) end,
           null::text, null::text, null::boolean, null::text
      -- By transaction id, one by one. Adding zero keeps the planner from the index of topic and lane, which would be read from the
      -- beginning of the partition. Sequences choose the partitions.
      from (select s.*
              from unnest(late_segments.open) as open (txid)
             cross join lateral (
                 select s.* from postbus.segment_shared s
                  where s.storage_id = late_segments.storage_id and s.txid = open.txid and s.topic_id + 0 = late_segments.topic_id
                    and s.sequence >= late_segments.low and s.sequence < late_segments.since
                 offset 0) as s
            union all
            select s.* from postbus.segment_shared s
             where s.storage_id = late_segments.storage_id and s.txid >= pg_snapshot_xmax(((cursor).seen).snapshot)
               and s.txid <= ((cursor).seen).txid and s.topic_id + 0 = late_segments.topic_id
               and s.sequence >= late_segments.low and s.sequence < late_segments.since) as late
     where late.lane + 0 = any (late_segments.lanes)
       and pg_visible_in_snapshot(late.txid, late_segments.snapshot)
       and (late.sequence <= (cursor).since_bound
            and (late.published_at < (cursor).since_at and pg_visible_in_snapshot(late.txid, (cursor).since_snapshot) is not false
                 or postbus.first_id(late.sequence) + late.count <= (cursor).since_id)) is not true
     order by late.sequence limit late_segments.max_segments
$$;

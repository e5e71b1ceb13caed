-- Where a cursor distinguishes segments. By transaction ids: all segments between one of these ranges and the next are alike to
-- it, either before or past it; within a range (from low on, and below high) it looks closer. And by sequences: the same for those
-- between these.
create or replace function postbus.cursor_edges(cursor postbus.log_cursor) returns table (low xid8, high xid8, sequence bigint)
language sql immutable parallel safe as $$
    select pg_snapshot_xmin(position.snapshot), pg_snapshot_xmax(position.snapshot), null::bigint
      from (values (((cursor).seen).snapshot), (((cursor).target).snapshot), (((cursor).until).snapshot)) as position (snapshot)
     where position.snapshot is not null
    union all       -- messages that it has left out, by their time or id
    select pg_snapshot_xmin(((cursor).seen).snapshot), '18446744073709551615', null where (cursor).since_bound is not null
    union all
    select null, null, (cursor).done_sequence + n from generate_series(0, 1) as n where (cursor).done_sequence is not null
    union all       -- a position that was not taken in the log, but says where it begins
    select null, null, ((cursor).seen).sequence + 1 where ((cursor).seen).txid = '2'
$$;

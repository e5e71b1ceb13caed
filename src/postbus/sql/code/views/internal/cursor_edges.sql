-- The transaction ids and sequences by which a cursor distinguishes segments. All segments between one of the ranges of transaction
-- ids (from low on, and below high) and the next are alike: either ahead of the cursor or passed. Within a range they may differ.
-- In the same way, all segments between one of the sequences and the next are alike.
create or replace function postbus.cursor_edges(cursor postbus.log_cursor) returns table (low xid8, high xid8, sequence bigint)
language sql immutable parallel safe as $$
    select pg_snapshot_xmin(position.snapshot), pg_snapshot_xmax(position.snapshot), null::bigint
      from (values (((cursor).seen).snapshot), (((cursor).target).snapshot), (((cursor).until).snapshot)) as position (snapshot)
     where position.snapshot is not null
    union all       -- messages that the cursor leaves out, by their time or id
    select pg_snapshot_xmin(((cursor).seen).snapshot), '18446744073709551615', null where (cursor).since_bound is not null
    union all
    select null, null, (cursor).done_sequence + n from generate_series(0, 1) as n where (cursor).done_sequence is not null
    union all       -- a position that was not taken in the log, but has the sequence before its first segment
    select null, null, ((cursor).seen).sequence + 1 where ((cursor).seen).txid = '2'
$$;

-- The transaction ids for which a cursor looks at more than the id: from low on, and below high. To all others it is past, or
-- before, whole segments alike. Two rows where the cursor has an end.
create or replace function postbus.edges(cursor postbus.log_cursor) returns table (low xid8, high xid8)
language sql immutable parallel safe as $$
    select case when ((cursor).seen).txid <> '2' then pg_snapshot_xmin(((cursor).seen).snapshot)
                when ((cursor).seen).position > 0 or (cursor).done_position is not null or (cursor).since_bound is not null then '0'::xid8
                else '3'::xid8 end,
           case when (cursor).since_bound is not null or ((cursor).seen).txid = '2' and ((cursor).seen).position > 0
                then '18446744073709551615'::xid8
                else greatest(pg_snapshot_xmax(((cursor).seen).snapshot), pg_snapshot_xmax(((cursor).target).snapshot)) end
     where ((cursor).seen).position is not null
    union all
    select pg_snapshot_xmin(((cursor).until).snapshot), pg_snapshot_xmax(((cursor).until).snapshot)
     where ((cursor).until).snapshot is not null
$$;

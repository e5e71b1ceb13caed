-- What a cursor tells segments apart by. By transaction ids: it is past, or before, all of those alike that lie from one of these ranges to
-- the next, and within such a range (from low on, and below high) it looks closer. And by positions: the same for those between these.
create or replace function postbus.edges(cursor postbus.log_cursor) returns table (low xid8, high xid8, "position" bigint)
language sql immutable parallel safe as $$
    select pg_snapshot_xmin(place.snapshot), pg_snapshot_xmax(place.snapshot), null::bigint
      from (values (((cursor).seen).snapshot), (((cursor).target).snapshot), (((cursor).until).snapshot)) as place (snapshot)
     where place.snapshot is not null
    union all       -- messages that it has left out, by their time or id
    select pg_snapshot_xmin(((cursor).seen).snapshot), '18446744073709551615', null where (cursor).since_bound is not null
    union all
    select null, null, (cursor).done_position + n from generate_series(0, 1) as n where (cursor).done_position is not null
    union all       -- a place that was not taken in the log, but says where it begins
    select null, null, ((cursor).seen).position + 1 where ((cursor).seen).txid = '2'
$$;

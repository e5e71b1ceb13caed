-- Whether a cursor is past a message: the group that stands there is done with it, or never wanted it.
create or replace function postbus.covers(
    cursor       postbus.log_cursor,
    "position"   bigint,
    txid         xid8,
    index        integer,
    count        integer,
    published_at timestamptz
) returns boolean
language sql immutable parallel safe
return index < count - postbus.unseen(cursor, position, txid, count, published_at);

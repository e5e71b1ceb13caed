-- Whether a cursor is past a message: the group is done with it, or never wanted it.
create or replace function postbus.is_past(
    cursor       postbus.log_cursor,
    sequence     bigint,
    txid         xid8,
    index        integer,
    count        integer,
    published_at timestamptz
) returns boolean
language sql immutable parallel safe
return index < count - postbus.unseen_in_segment(cursor, sequence, txid, count, published_at);

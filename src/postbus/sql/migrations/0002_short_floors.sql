-- A claimer's floor is short, and so costs next to nothing to read and to write.
-- The functions that use the type are created again by the code files.

drop type postbus.queue_floor cascade;
drop function if exists postbus.take_queued(tid[]), postbus.take_ordered(bigint, tid[], integer, bigint);

-- Where a claimer's next search of a topic may start.
--
-- It was taken with a snapshot: all transactions below xmax had ended then, but those listed as open.
-- What was visible has been taken, as far as the place (txid, id) of its priority (index = priority + 1),
-- or all of it where there is no place. So the next search looks above that, and at the transactions
-- that were open: what finished messages have left behind is not stepped over again and again, however
-- old the oldest transaction on the server is. A floor is a hint: without one the search starts at the
-- beginning.
--
-- Claimers keep it as an opaque text and hand it back with their next claim.
create type postbus.queue_floor as (
    xmax          xid8,
    open          xid8[],
    txids         xid8[],
    ids           bigint[],
    delays_due_at timestamptz,      -- delayed messages that were due by then and visible are promoted
    used          integer           -- how much has been claimed with it
);

-- The position of a reader that has seen all up to another position, and then what a snapshot shows; null if the reader may as well
-- stay where it was. The sequence was read before the snapshot: see the type log_position.
--
-- What holds for the old sequence and transaction id still holds: transactions above that id have their segments above that
-- sequence. So both are used again, with the new snapshot, while few segments were added since. The next read steps over these,
-- which costs no more than a transaction id of its own. And a transaction that is open just now is not late: at a new position it
-- would be, and searching for late segments costs as much as a read.
create or replace function postbus.next_position(seen postbus.log_position, sequence bigint, snapshot pg_snapshot, found integer)
returns postbus.log_position
language sql volatile
return case
    when found = 0 and sequence - (seen).sequence < 1000 then null
    when found < 32 and sequence - (seen).sequence < 32 then row((seen).sequence, (seen).txid, snapshot)::postbus.log_position
    else row(sequence, pg_current_xact_id(), snapshot)::postbus.log_position
end;

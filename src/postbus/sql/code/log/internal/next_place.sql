-- The place that a reader has come to who saw all up to another one, and then what a snapshot shows; null if it may as well
-- stay where it was. The position was read before the snapshot: see the type log_place.
--
-- What is true of the old place's position and transaction id stays true: transactions above that id have their segments above
-- that position. So both serve again, with the new snapshot, while few segments have come since; the next read steps over
-- them. That costs no more than an own transaction id, and whoever has a transaction open just now is not late: he would be
-- at a new position, and looking for what is late costs as much as a read.
create or replace function postbus.next_place(seen postbus.log_place, "position" bigint, snapshot pg_snapshot, found integer)
returns postbus.log_place
language sql volatile
return case
    when found = 0 and position - (seen).position < 1000 then null
    when found < 32 and position - (seen).position < 32 then row((seen).position, (seen).txid, snapshot)::postbus.log_place
    else row(position, pg_current_xact_id(), snapshot)::postbus.log_place
end;

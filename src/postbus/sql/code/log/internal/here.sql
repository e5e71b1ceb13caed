-- The place of now: all that is visible at this moment. Refuses a transaction that has written.
create or replace function postbus.here(storage_id integer) returns postbus.log_place
language plpgsql volatile as $$
declare
    _place postbus.log_place;
begin
    perform postbus.check_cluster();
    perform postbus.check_fresh();
    _place.position := postbus.last_position(storage_id);
    -- Before the transaction's own id: a snapshot may show that as ended, and with it what this transaction publishes.
    _place.snapshot := pg_current_snapshot();
    _place.txid := pg_current_xact_id();
    return _place;
end $$;

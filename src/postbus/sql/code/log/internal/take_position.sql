-- Takes the current position: all that is visible at this moment. Refuses a transaction that has written.
create or replace function postbus.take_position(storage_id integer) returns postbus.log_position
language plpgsql volatile as $$
declare
    _position postbus.log_position;
begin
    perform postbus.check_cluster();
    perform postbus.check_fresh();
    _position.sequence := postbus.last_sequence(storage_id);
    -- Before the transaction's own id: a snapshot may show that as ended, and with it what this transaction publishes.
    _position.snapshot := pg_current_snapshot();
    _position.txid := pg_current_xact_id();
    return _position;
end $$;

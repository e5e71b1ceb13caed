-- Refuses to take a position in a transaction that has an id already: transactions that began after it may have written below the
-- last sequence, and would be missed.
create or replace function postbus.check_fresh() returns void
language plpgsql as $$
begin
    if pg_current_xact_id_if_assigned() is not null then
        perform postbus.refuse('PB431', 'this call needs a transaction that has written nothing yet, since it reads the log',
            'call this function at the beginning of a transaction of its own');
    end if;
end $$;

-- Refuses a transaction that has one snapshot for all of its statements: order per key needs one for each.
create or replace function postbus.check_isolation() returns void
language plpgsql as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform postbus.refuse('PB402', format('the order of keys cannot be kept in a transaction that is %s',
                                               current_setting('transaction_isolation')),
            'use READ COMMITTED for transactions that claim or settle; see default_transaction_isolation');
    end if;
end $$;

-- Refuses a lease that ends at once, or at a time that does not exist.
create or replace function postbus.check_lease(lease interval) returns void
language plpgsql as $$
begin
    if lease <= interval '0' then
        perform postbus.refuse('PB402', format('lease %s is not positive', lease), 'give a lease longer than the work takes');
    elsif lease > interval '1000 years' then      -- infinity too
        perform postbus.refuse('PB402', format('lease %s is longer than 1000 years', lease), 'give a shorter lease');
    end if;
end $$;

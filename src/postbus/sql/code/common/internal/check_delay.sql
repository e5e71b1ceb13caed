-- Refuses a delay that is negative, or ends at a time that does not exist.
create or replace function postbus.check_delay(delay interval) returns void
language plpgsql as $$
begin
    if delay < interval '0' then
        perform postbus.refuse('PB402', format('delay %s is negative', delay), 'give a delay of zero or more');
    elsif delay > interval '1000 years' then      -- infinity too
        perform postbus.refuse('PB402', format('delay %s is longer than 1000 years', delay), 'give a shorter delay');
    end if;
end $$;

-- Refuses a pop of less than one message, or with an invalid lease.
create or replace function postbus.check_pop(max_count integer, lease interval) returns void
language plpgsql as $$
begin
    if max_count is null or max_count < 1 then
        perform postbus.refuse('PB402', format('max_count %s is less than 1', max_count), 'pop one message or more');
    elsif lease <= interval '0' or lease > interval '1000 years' then
        perform postbus.check_lease(lease);
    end if;
end $$;

-- Refuses options that no group can have, whatever it subscribes to.
create or replace function postbus.check_group(group_name text, on_failure text, catch_up jsonb) returns void
language plpgsql as $$
begin
    perform postbus.check_group_name(group_name);
    if on_failure is null or on_failure not in ('block', 'pass') then
        perform postbus.refuse('PB402', format('on_failure %s is not known', coalesce(quote_literal(on_failure), 'null')), 'use block or pass');
    end if;
    perform postbus.check_cluster();
    perform postbus.catch_up_options(catch_up);
end $$;

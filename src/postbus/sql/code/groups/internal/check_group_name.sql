-- Refuses a group's name that breaks the rules.
create or replace function postbus.check_group_name(name text) returns void
language plpgsql as $$
begin
    if not postbus.is_name(name) then
        perform postbus.refuse('PB401', format('bad group name %s', coalesce(quote_literal(left(name, 220)), 'null')),
            'a name has 1 to 200 letters, digits or . _ - : / and starts with a letter, a digit or _');
    end if;
end $$;

-- Refuses the name of a process or a member that is too long, or has control characters.
create or replace function postbus.check_label(name text) returns void
language plpgsql as $$
begin
    if (length(name) between 1 and 300 and name !~ '[[:cntrl:]]') is not true then
        perform postbus.refuse('PB402', format('bad name of a process or a member: %s', coalesce(quote_literal(postbus.in_line(name, 220)), 'null')),
            'give 1 to 300 characters, and no control characters');
    end if;
end $$;

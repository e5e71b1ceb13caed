-- Refuses a member's name that is empty, or too long for an index.
create or replace function postbus.check_member(member text) returns void
language plpgsql as $$
begin
    if (length(member) <= 300) is not true then
        perform postbus.refuse('PB402', 'the member has no name, or one of more than 300 characters', 'give a shorter name');
    end if;
end $$;

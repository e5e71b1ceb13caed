-- Refuses a member without a name, or with a name that is too long for an index.
create or replace function postbus.check_member(member text) returns void
language plpgsql as $$
begin
    if (length(member) <= 300) is not true then
        perform postbus.refuse('PB402', 'the member has no name, or a name of more than 300 characters', 'give a name of at most 300 characters');
    end if;
end $$;

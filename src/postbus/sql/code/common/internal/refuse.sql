-- Raises an error of Postbus: what is wrong, and what to do about it.
create or replace function postbus.refuse(code text, message text, remedy text) returns void
language plpgsql as $$
begin
    raise exception using errcode = code, message = message, hint = remedy;
end $$;

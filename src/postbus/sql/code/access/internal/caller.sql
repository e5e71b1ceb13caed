-- The role that the caller logged in as, or has set since. Functions of Postbus run as their owner, so current_user is another one.
create or replace function postbus.caller() returns name
language sql stable
return case when current_setting('role') = 'none' then session_user else current_setting('role')::name end;

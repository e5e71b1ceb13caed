-- A text as part of one line, at most so many characters long: without control characters, which terminals and logs obey.
create or replace function postbus.in_line(given text, most integer) returns text
language sql immutable parallel safe
return left(regexp_replace(given, '[[:cntrl:]]+', ' ', 'g'), most);

-- A text as part of one line, of at most `most` characters, without control characters, which terminals and logs would obey.
create or replace function postbus.in_line(given text, most integer) returns text
language sql immutable parallel safe
return left(regexp_replace(given, '[[:cntrl:]]+', ' ', 'g'), most);

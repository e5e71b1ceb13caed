-- A text as part of one line, cut to so many characters, without control characters, which terminals and logs would obey.
create or replace function postbus.in_line(given text, most integer) returns text
language sql immutable parallel safe
return left(regexp_replace(given, '[[:cntrl:]]+', ' ', 'g'), most);

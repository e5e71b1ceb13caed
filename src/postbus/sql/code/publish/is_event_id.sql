-- Whether a text may be the event id of a message that came from elsewhere: 1 to 200 printable ASCII characters, without spaces at
-- its ends. So every broker accepts it unchanged. Python has the same rule.
create or replace function postbus.is_event_id(given text) returns boolean
language sql immutable parallel safe
return coalesce(given collate "C" ~ '^[!-~]([ -~]{0,198}[!-~])?$', false);

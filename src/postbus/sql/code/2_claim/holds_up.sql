-- Whether a message on the shelf of a group holds up those of its key behind it: unless it has failed, and the group lets others pass.
create or replace function postbus.holds_up(shelved postbus.retrying, passes boolean) returns boolean
language sql immutable
return not passes or shelved.attempts = 0 or shelved.attempts = 1 and shelved.token is not null;

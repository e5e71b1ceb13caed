-- Whether a text follows the rules for names of topics, groups, namespaces and tasks.
create or replace function postbus.is_name(name text) returns boolean
language sql immutable parallel safe
return name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$' and name is not null;

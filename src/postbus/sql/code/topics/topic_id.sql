-- The id of a topic, computed from its name. The same on every server and version.
create or replace function postbus.topic_id(name text) returns bigint
language sql immutable strict parallel safe
return ('x' || left(md5(name), 16))::bit(64)::bigint;

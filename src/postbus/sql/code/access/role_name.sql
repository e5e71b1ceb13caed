-- The name of a role of this database, such as postbus_consumer_shop. Roles belong to the whole server, so they carry the
-- database's name. A name that would be too long ends with a hash.
create or replace function postbus.role_name(role text, database text default current_database()) returns text
language sql immutable parallel safe
return 'postbus_' || role || '_'
    || case when octet_length('postbus_' || role || '_' || database) <= 63 then database
            else left(database, case when octet_length(database) = length(database) then 33 else 8 end) || '_' || left(md5(database), 12) end;

-- The roles that `postbus migrate` has given their rights. Another role, of the same name or not, has to be given them again.
create table postbus.role_granted (
    role text primary key,      -- producer, consumer, observer, operator or admin
    oid  oid not null
);

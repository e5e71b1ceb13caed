-- The roles of this database: the name of each, whether it exists, and whether `postbus migrate` has given it its rights.
create or replace function postbus.roles() returns table (role text, name text, is_there boolean, has_rights boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select one.role, postbus.role_name(one.role), r.oid is not null, r.oid is not null and r.oid = g.oid
      from unnest(array['producer', 'consumer', 'observer', 'operator', 'admin']) with ordinality as one (role, n)
      left join pg_roles r on r.rolname = postbus.role_name(one.role)
      left join postbus.role_granted g on g.role = one.role
     order by one.n
$$;

-- Whether the caller was granted an action on a topic: publish, consume or read. See grant_topic. Members of a role have the grants
-- of that role.
create or replace function postbus.is_granted(action text, topic text) returns boolean
language plpgsql stable as $$
declare
    _caller name := postbus.caller();
begin
    return exists (
        select from postbus.topic_grant g
         where g.action = is_granted.action
           and is_granted.topic like replace(replace(g.pattern, '_', '\_'), '*', '%')
           -- A new role with the name of a dropped one does not have its grants.
           and g.role_oid = (select r.oid from pg_roles r where r.rolname = g.role)
           and pg_has_role(_caller, g.role_oid, 'usage'));
end $$;

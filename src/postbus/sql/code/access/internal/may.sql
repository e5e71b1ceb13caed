-- Whether the caller was granted an action, publish, consume or read, on a topic: see grant_topic. Members have what their role has.
create or replace function postbus.may(action text, topic text) returns boolean
language plpgsql stable as $$
declare
    _caller name := postbus.caller();
begin
    return exists (
        select from postbus.topic_grant g
         where g.action = may.action
           and may.topic like replace(replace(g.pattern, '_', '\_'), '*', '%')
           -- Another role that has its name now is another role.
           and g.role_oid = (select r.oid from pg_roles r where r.rolname = g.role)
           and pg_has_role(_caller, g.role_oid, 'usage'));
end $$;

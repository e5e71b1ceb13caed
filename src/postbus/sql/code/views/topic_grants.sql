-- The grants of grant_topic. Roles that were dropped are left out: their grants give nothing.
create or replace view postbus.topic_grants as
select g.role, g.pattern, g.action, g.granted_by, g.granted_at,
       exists (select from pg_roles r where r.rolname = g.role and r.oid = g.role_oid) as is_there
  from postbus.topic_grant g;

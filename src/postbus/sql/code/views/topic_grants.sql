-- The grants of grant_topic. is_there is false for a role that was dropped: its grants give nothing.
create or replace view postbus.topic_grants as
select g.role, g.pattern, g.action, g.granted_by, g.granted_at,
       exists (select from pg_roles r where r.rolname = g.role and r.oid = g.role_oid) as is_there
  from postbus.topic_grant g;

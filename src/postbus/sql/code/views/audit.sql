-- The audit log: each action with its login, its object and its changes. Only callers that may read tokens see actions on tokens,
-- webhooks and grants, and the addresses from which people act.
create or replace view postbus.audit with (security_barrier) as
select e.id, e.at, e.login, e.role, e.actor, e.program, case when reader.sees_all then e.address end as address,
       e.action, e.topic, e.group_name, e.target, e.affected, e.given, e.before, e.after
  from postbus.audit_entry e
 cross join (select has_table_privilege('postbus.tokens', 'select') as sees_all offset 0) as reader
 where reader.sees_all or split_part(e.action, '.', 1) not in ('token', 'webhook', 'role');

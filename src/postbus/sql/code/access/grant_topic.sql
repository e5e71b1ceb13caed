-- Lets a role publish to, consume from, or read some topics without being a member of a role of Postbus: by the functions and
-- views of the schema postbus_topics. pattern is a name in which * stands for any text; action is publish, consume or read.
-- Granting twice changes nothing.
--
-- Writes: topic_grant; see apply_topic_grants and note_action.
create or replace function postbus.grant_topic(role text, pattern text, action text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _oid oid := (select r.oid from pg_roles r where r.rolname = grant_topic.role);
begin
    perform postbus.check_topic_grant(pattern, action);
    if _oid is null then
        perform postbus.refuse('PB402', format('there is no role %s', quote_nullable(role)), 'create it: create role NAME login');
    end if;
    if exists (select from postbus.roles() r where r.name = grant_topic.role) then
        perform postbus.refuse('PB402', format('role %I has rights on all topics', role), 'name the role of an application');
    end if;
    delete from postbus.topic_grant g where g.role = grant_topic.role and g.role_oid <> _oid;      -- of a dropped role with this name
    insert into postbus.topic_grant (role, role_oid, pattern, action, granted_by)
    values (grant_topic.role, _oid, grant_topic.pattern, grant_topic.action, postbus.caller())
    on conflict do nothing;
    if found then
        perform postbus.note_action('role.grant_topic', target => role, given => jsonb_build_object('pattern', pattern, 'action', action));
    end if;
    perform postbus.apply_topic_grants(role);
end $$;

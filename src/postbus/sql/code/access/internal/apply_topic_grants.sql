-- Gives a role the privileges that its grants need in the schema postbus_topics, and no others there.
--
-- Writes: the privileges of the functions and views of postbus_topics.
create or replace function postbus.apply_topic_grants(role text) returns void
language plpgsql as $$
declare
    _actions text[] := array(select distinct g.action from postbus.topic_grant g join pg_roles r on r.rolname = g.role and r.oid = g.role_oid
                              where g.role = apply_topic_grants.role);
    _one     record;
begin
    execute format('revoke all on schema postbus_topics from %I', role);
    execute format('revoke all on all functions in schema postbus_topics from %I', role);
    execute format('revoke all on all tables in schema postbus_topics from %I', role);
    if _actions <> '{}' then
        execute format('grant usage on schema postbus_topics to %I', role);
    end if;
    for _one in
        select f.oid::regprocedure as signature from pg_proc f
         where f.pronamespace = 'postbus_topics'::regnamespace
           and case when f.proname like 'publish%' then 'publish' when f.proname = 'readable' then 'read' else 'consume' end = any (_actions)
    loop
        execute format('grant execute on function %s to %I', _one.signature, role);
    end loop;
    if 'read' = any (_actions) then
        execute format('grant select on all tables in schema postbus_topics to %I', role);
    end if;
    -- A reader of the views needs the right to call the functions that they call. Without the schema postbus it cannot call them
    -- otherwise.
    for _one in
        select f.oid::regprocedure as signature from pg_proc f
         where f.pronamespace = 'postbus'::regnamespace
           and f.proname in ('payload_json', 'payloads_of', 'lines_of', 'text_lines', 'first_id', 'event_id', 'is_event_id', 'source',
                             'group_lag', 'recent_calls', 'health_limits', 'alive_for')
    loop
        execute format('revoke execute on function %s from %I', _one.signature, role);
        if 'read' = any (_actions) then
            execute format('grant execute on function %s to %I', _one.signature, role);
        end if;
    end loop;
end $$;

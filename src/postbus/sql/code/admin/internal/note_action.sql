-- Notes an action in the audit log, in the same transaction. Each function by which operators act calls it when it has changed
-- something. No role may call it, so nobody can note actions that were not taken.
--
-- login and role are those of the session. A server, or a command line, that acts for a person names that person in the
-- transaction's setting postbus.actor. The caller chooses that name, so it is noted beside the login and never in its place.
--
-- Writes: audit_entry.
create or replace function postbus.note_action(
    action     text,
    topic      text default null,
    group_name text default null,
    target     text default null,
    affected   bigint default null,
    given      jsonb default null,
    before     jsonb default null,
    after      jsonb default null
) returns void
language sql
set search_path = pg_catalog, pg_temp as $$
    insert into postbus.audit_entry (login, role, actor, program, address, action, topic, group_name, target, affected, given, before, after)
    values (session_user, nullif(current_setting('role'), 'none'), nullif(postbus.one_line(current_setting('postbus.actor', true)), ''),
            nullif(postbus.one_line(current_setting('application_name')), ''), inet_client_addr(), action, postbus.one_line(topic),
            postbus.one_line(group_name), postbus.one_line(target), affected, nullif(postbus.short_json(jsonb_strip_nulls(given)), '{}'),
            nullif(postbus.short_json(before), '{}'), nullif(postbus.short_json(after), '{}'))
$$;

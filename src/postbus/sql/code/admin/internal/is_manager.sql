-- Whether the caller may manage groups. Actions that consumers may take as well are noted in the audit log only for such callers,
-- so that nobody else can fill the log.
create or replace function postbus.is_manager() returns boolean
language sql stable
set search_path = pg_catalog, pg_temp as $$
    select has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
                                  'postbus.set_group_state(text, text, text)', 'execute')
$$;

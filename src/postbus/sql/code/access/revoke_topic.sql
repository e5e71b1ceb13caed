-- Takes back grants of grant_topic: this pattern, as it was given, and this action; null stands for all. Returns the number of
-- these grants. A lease that the role has can still be settled.
--
-- Writes: topic_grant; see apply_topic_grants and note_action.
create or replace function postbus.revoke_topic(role text, pattern text default null, action text default null) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _count integer;
begin
    delete from postbus.topic_grant g
     where g.role = revoke_topic.role and g.pattern = coalesce(revoke_topic.pattern, g.pattern)
       and g.action = coalesce(revoke_topic.action, g.action);
    get diagnostics _count = row_count;
    if _count > 0 then
        perform postbus.note_action('role.revoke_topic', target => role, affected => _count,
                                    given => jsonb_build_object('pattern', pattern, 'action', action));
    end if;
    if _count > 0 and exists (select from pg_roles r where r.rolname = revoke_topic.role) then
        perform postbus.apply_topic_grants(role);
    end if;
    return _count;
end $$;

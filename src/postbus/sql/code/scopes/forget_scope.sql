-- Forgets a group's record of a scope: the group joins no further topics by it, and a later subscription is recorded anew. Existing
-- subscriptions stay; with `cancel` they are CANCELLED. Returns the number of subscriptions in the scope.
--
-- Writes: scope; see change_group_state and note_action.
create or replace function postbus.forget_scope(
    group_name text,
    topic      text default null,
    key        text default null,
    namespace  text default null,
    task       text default null,
    pattern    text default null,
    cancel     boolean default false
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _scope postbus.scope := postbus.existing_scope(group_name, topic, key, namespace, task, pattern);
    _names text[] := array(select f.topic_name from postbus.topics_in_scope(_scope) as f where f.subscription_id is not null);
begin
    if cancel then
        perform postbus.change_group_state(one.name, forget_scope.group_name, 'CANCELLED') from unnest(_names) as one (name);
    end if;
    delete from postbus.scope c where c.id = _scope.id;
    perform postbus.note_action('scope.forget', topic, group_name, postbus.scope_target(_scope), case when cancel then cardinality(_names) end,
                                given => jsonb_build_object('cancel', cancel));
    return cardinality(_names);
end $$;

-- Pauses or resumes a group in all topics of a scope: ACTIVE becomes PAUSED, or PAUSED becomes ACTIVE; other states stay. Returns
-- how many subscriptions have the new state.
--
-- Writes: see change_group_state and note_action.
create or replace function postbus.set_scope_state(
    group_name text,
    state      text,
    topic      text default null,
    key        text default null,
    namespace  text default null,
    task       text default null,
    pattern    text default null
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _scope postbus.scope := postbus.existing_scope(group_name, topic, key, namespace, task, pattern);
    _names text[] := array(select f.topic_name from postbus.topics_in_scope(_scope) as f
                            where f.state in ('ACTIVE', 'PAUSED') and not f.waits_for_queue);
    _count bigint;
begin
    if (set_scope_state.state in ('ACTIVE', 'PAUSED')) is not true then
        perform postbus.refuse('PB433', format('a scope cannot become %s', coalesce(state, 'null')), 'use PAUSED or ACTIVE, or forget_scope');
    end if;
    select count(*) filter (where changed.before <> set_scope_state.state) into _count
      from unnest(_names) as one (name)
     cross join lateral postbus.change_group_state(one.name, set_scope_state.group_name, set_scope_state.state) as changed (before);
    if _count > 0 then
        perform postbus.note_action(case state when 'PAUSED' then 'group.pause' else 'group.resume' end, topic, group_name,
                                    postbus.scope_target(_scope), _count, after => jsonb_build_object('state', state));
    end if;
    return cardinality(_names);
end $$;

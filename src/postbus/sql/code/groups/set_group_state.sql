-- Changes the state of a subscription, and notes that in the audit log: see change_group_state.
--
-- Writes: see change_group_state and note_action.
create or replace function postbus.set_group_state(topic text, group_name text, state text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _before text := postbus.change_group_state(topic, group_name, state);
begin
    if _before <> state then
        perform postbus.note_action(case state when 'PAUSED' then 'group.pause' when 'ACTIVE' then 'group.resume' else 'group.cancel' end,
                                    topic, group_name, before => jsonb_build_object('state', _before), after => jsonb_build_object('state', state));
    end if;
end $$;

-- Notes an action that changes options, with those that have changed, before and after. If none has, nothing is noted.
--
-- Writes: see note_action.
create or replace function postbus.note_change(
    action     text,
    before     jsonb,
    after      jsonb,
    topic      text default null,
    group_name text default null,
    target     text default null
) returns void
language plpgsql as $$
begin
    if before is distinct from after then
        perform postbus.note_action(action, topic, group_name, target, before => postbus.differing(before, after),
                                    after => postbus.differing(after, before));
    end if;
end $$;

-- Brings DEAD groups back to life, and notes that in the audit log: see bring_back. Has to be called in a transaction of its own.
--
-- Writes: see bring_back and note_action.
create or replace function postbus.resurrect(
    subscription_ids bigint[],
    with_catch_up    boolean default true,
    catch_up         jsonb default null
) returns table (subscription_id bigint, missed bigint, skipped bigint, catch_up_id bigint, "position" text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    for subscription_id, missed, skipped, catch_up_id, position in
        select b.* from postbus.bring_back(subscription_ids, with_catch_up, catch_up => resurrect.catch_up) as b
    loop
        perform postbus.note_action('group.resurrect', t.name, s.group_name, affected => resurrect.missed,
                                    given => jsonb_build_object('with_catch_up', with_catch_up, 'catch_up', resurrect.catch_up),
                                    after => jsonb_build_object('missed', resurrect.missed, 'skipped', resurrect.skipped))
           from postbus.subscription s join postbus.topic t on t.id = s.topic_id where s.id = resurrect.subscription_id;
        return next;
    end loop;
end $$;

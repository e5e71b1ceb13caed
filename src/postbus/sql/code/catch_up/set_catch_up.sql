-- Cancels the catch-up of a group, or resumes a cancelled one from its position, with the messages that are still retained. The
-- group itself goes on meanwhile, and processes finish the messages they have in hand. Returns the catch-up's subscription.
--
-- Writes: subscription, catch_up, stretch, joining; see note_action.  Locks: the subscription's row.
create or replace function postbus.set_catch_up(topic text, group_name text, is_wanted boolean) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _group postbus.subscription := postbus.existing_subscription(topic, group_name);
    _found postbus.catch_up;
begin
    select c.* into _found
      from postbus.subscription s join postbus.catch_up c on c.subscription_id = s.id
     where s.catch_up_of = _group.id and c.status <> 'COMPLETED'
       and exists (select from postbus.lane l where l.subscription_id = c.subscription_id)      -- not a catch-up that a seek ended
     order by c.started_at desc limit 1 for update of c;
    if _found.subscription_id is null then
        perform postbus.refuse('PB433', format('group %L of topic %L is not catching up', group_name, topic),
            format('see its lag: postbus groups show %s %s', topic, group_name));
    end if;
    if is_wanted <> (_found.status = 'IN_PROGRESS') then
        if is_wanted then
            perform postbus.note_return(_found.subscription_id);
            perform postbus.note_joining(postbus.subscribed_topic(_group.id));
        else
            perform postbus.note_death(array[_found.subscription_id]);
        end if;
        update postbus.catch_up c
           set status = case when is_wanted then 'IN_PROGRESS' else 'CANCELLED' end,
               ended_at = case when is_wanted then null else clock_timestamp() end
         where c.subscription_id = _found.subscription_id;
        update postbus.subscription s
           set state = case when is_wanted then _group.state else 'CANCELLED' end,
               state_changed_at = case when is_wanted and _group.state = 'DEAD' then _group.state_changed_at else clock_timestamp() end
         where s.id = _found.subscription_id;
        perform pg_notify('postbus', _group.topic_id::text);
        perform postbus.note_action(case when is_wanted then 'catch_up.resume' else 'catch_up.cancel' end, topic, group_name);
    end if;
    return _found.subscription_id;
end $$;

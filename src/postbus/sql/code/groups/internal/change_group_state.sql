-- Changes the state of a subscription, and of its catch-up: ACTIVE to PAUSED and back, and any state to CANCELLED, which is final.
-- A change to the current state does nothing; others are refused. A CANCELLED group stays out of the topic, even if a wider scope
-- of the group includes the topic; its scopes of this topic alone are forgotten. Returns the former state.
--
-- Writes: subscription; for CANCELLED also scope, and see end_subscription.  Locks: the subscription's row.
create or replace function postbus.change_group_state(topic text, group_name text, state text) returns text
language plpgsql as $$
declare
    _found   postbus.subscription := postbus.existing_subscription(topic, group_name);
    _history bigint;
begin
    if _found.state = change_group_state.state then
        return _found.state;
    elsif (change_group_state.state = 'CANCELLED'
           or (_found.state, change_group_state.state) in (('ACTIVE', 'PAUSED'), ('PAUSED', 'ACTIVE'))) is not true then
        perform postbus.refuse('PB433', format('a subscription that is %s cannot become %s', _found.state,
                                               coalesce(change_group_state.state, 'null')),
            case _found.state when 'DEAD' then format('start its worker, or: postbus groups resurrect %s %s; or cancel it', topic, group_name)
                              else 'pause an ACTIVE subscription, resume a PAUSED one, or cancel it' end);
    elsif _found.waits_for_queue and change_group_state.state = 'ACTIVE' then
        perform postbus.refuse('PB433', format('group %L waits until the queue of topic %L is empty', group_name, topic),
            'let its consumers handle the rest, or hand it over to a group: postbus topics migrate ' || topic || ' --to PUB_SUB --hand-over');
    end if;
    -- Seen now: members of a paused group send no heartbeats, and the group must not become DEAD for that when it goes on.
    update postbus.subscription s
       set state = change_group_state.state, state_changed_at = clock_timestamp(), seen_at = clock_timestamp(), missed = 0, missed_at = null
     where s.id = _found.id or (s.catch_up_of = _found.id and s.state <> 'CANCELLED');
    if change_group_state.state = 'CANCELLED' then
        perform postbus.end_subscription(_found.id);
        delete from postbus.scope c where c.group_name = _found.group_name and c.topic = change_group_state.topic;
        for _history in
            select s.id from postbus.subscription s join postbus.catch_up c on c.subscription_id = s.id
             where s.catch_up_of = _found.id and c.status <> 'COMPLETED'
        loop
            perform postbus.end_subscription(_history, 'CANCELLED');
        end loop;
    end if;
    perform pg_notify('postbus', _found.topic_id::text);
    return _found.state;
end $$;

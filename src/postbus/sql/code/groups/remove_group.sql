-- Removes a group, in steps: call it again until it returns that the group is removed. The first call pauses the group, so that
-- processes finish and settle the messages they have in hand. Once they hold none of its lanes any more, or were not seen for the
-- lease, a call removes the group with all that belongs to it: the rest of earlier subscriptions, and its scopes of this topic.
-- `held` is the number of lanes that are still held. With force the group is removed nevertheless: processes still handle the
-- messages they have in hand, but cannot settle them. If a transaction is just settling in a lane, the call waits for two seconds.
--
-- Writes: subscription and all that belongs to it, scope; see note_action.  Locks: the group's subscription rows, lane rows.
create or replace function postbus.remove_group(
    topic       text,
    group_name  text,
    force       boolean default false,
    out removed boolean,
    out held    bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s' as $$
declare
    _now   timestamptz := clock_timestamp();
    _topic postbus.topic := postbus.topic_options(topic);
    _ids   bigint[];
    _had   jsonb;
begin
    _ids := array(select s.id from postbus.subscription s where s.topic_id = _topic.id and s.group_name = remove_group.group_name
                   order by s.id for update);
    if _ids = '{}' then
        perform postbus.refuse('PB406', format('group %L has no subscription to topic %L', group_name, topic),
            'list the groups of the topic: postbus groups list ' || topic);
    end if;
    update postbus.subscription s set state = 'PAUSED', state_changed_at = _now where s.id = any (_ids) and s.state = 'ACTIVE';
    if found then
        perform postbus.note_action('group.pause', topic, group_name, given => '{"to": "remove"}');
    end if;
    held := (select count(*) from postbus.lane l join postbus.worker w on w.name = l.holder
              where l.subscription_id = any (_ids) and w.seen_at >= _now - _topic.lease);
    removed := held = 0 or force;
    if removed then
        _had := jsonb_build_object('dead_letters', (select count(*) from postbus.dead_letter d
                                                     where d.topic_id = _topic.id and d.subscription_id = any (_ids)),
                                   'deferred', (select count(*) from postbus.deferred r where r.subscription_id = any (_ids)));
        begin
            perform postbus.forget_subscriptions(_ids);
            delete from postbus.scope c where c.group_name = remove_group.group_name and c.topic = remove_group.topic;
            perform postbus.note_action('group.remove', topic, group_name, given => jsonb_build_object('force', force), before => _had);
        exception when lock_not_available then
            removed := false;
        end;
    end if;
    perform pg_notify('postbus', _topic.id::text);
end $$;

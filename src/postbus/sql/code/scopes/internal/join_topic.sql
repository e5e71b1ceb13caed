-- Subscribes a group to a topic that is in one of its scopes, from the start that the deciding record gives; to a single key if the
-- record is about a key. A group that was CANCELLED on the topic since `scope` was recorded stays out. A group that has some keys
-- gets the others as well. While all subscriptions of the record are PAUSED, this one begins PAUSED, too.
--
-- Writes: see begin_subscription and join_key.
create or replace function postbus.join_topic(
    scope postbus.scope,
    topic postbus.topic,
    "position" postbus.log_position,
    is_recorded_now boolean default false,
    out subscription_id bigint,
    out missed          bigint,
    out skipped         bigint,
    out catch_up_id     bigint
)
language plpgsql as $$
declare
    _scope postbus.scope := case when scope.key is null then postbus.deciding_scope(scope.group_name, topic) else scope end;
    _known postbus.subscription;
    _new   postbus.subscription;
begin
    select * into _known from postbus.subscription s
     where s.topic_id = topic.id and s.group_name = scope.group_name and s.catch_up_of is null
     order by s.state = 'CANCELLED', s.id desc limit 1;
    if _known.state <> 'CANCELLED' then
        if (scope.key = any (_known.keys)) is not true and (_known.keys is not null or scope.key is not null and is_recorded_now) then
            perform postbus.join_key(_known, topic, _scope);
        end if;
        return;
    elsif _known.state_changed_at >= scope.recorded_at then
        return;
    end if;
    _new.group_name := scope.group_name;
    _new.state := case when (select bool_and(s.state = 'PAUSED' and not s.waits_for_queue) from postbus.subscription s
                              where s.scope_id = _scope.id and s.group_name = scope.group_name and s.state <> 'CANCELLED')
                       then 'PAUSED' end;
    _new.start := case _scope.mode when 'new' then 'FROM_NOW' when 'all' then 'FROM_BEGINNING'
                                    when 'message' then 'FROM_MESSAGE_ID' else 'FROM_TIMESTAMP' end;
    _new.start_at := _scope.start_at;
    _new.start_id := _scope.start_id;
    _new.subscribed := position;
    _new.on_failure := _scope.on_failure;
    _new.catch_up := _scope.catch_up;
    _new.keys := case when scope.key is not null then array[scope.key] end;
    _new.scope_id := _scope.id;
    select b.subscription_id, b.missed, b.skipped, b.catch_up_id into subscription_id, missed, skipped, catch_up_id
      from postbus.begin_subscription(topic, _new, postbus.scope_cursor(_scope, topic)) as b;
    perform pg_notify('postbus', '0');      -- processes that consume for scopes then call scope_news
end $$;

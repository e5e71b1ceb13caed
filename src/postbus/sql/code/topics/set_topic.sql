-- Changes options of a topic. Subscribes the groups whose scopes match it by its new labels. A topic stays in the log storage that
-- it was created in, whatever its retention becomes; if the storage is its own, the storage's period follows the retention.
--
-- Writes: log_storage; see save_topic, storage_for, begin_move, join_scopes and note_change.  Locks: the topic's row.
create or replace function postbus.set_topic(name text, options jsonb) returns postbus.topic
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _before postbus.topic := postbus.existing_topic(name);
    _after  postbus.topic;
begin
    if _before.semantics = 'PUB_SUB' and options ->> 'semantics' = 'QUEUE' then
        perform postbus.refuse('PB408', format('topic %L is PUB_SUB, and cannot become a QUEUE, because a QUEUE has no groups', name),
            'create a QUEUE with another name and publish there; delete this topic when its groups have read it');
    end if;
    _after := postbus.with_options(_before, options);
    if _after.ordered <> _before.ordered then
        perform postbus.check_idle(_before);
    end if;
    if _after.semantics <> _before.semantics then
        perform postbus.check_idle(_before, format('move them to groups: postbus topics migrate %s --to PUB_SUB --group GROUP', name));
        _after.storage_id := postbus.storage_for(_after);
        perform postbus.begin_move(_before);        -- messages of transactions that are open now are not seen here
    elsif _after.semantics = 'PUB_SUB' then
        if (_after.lanes, _after.named_lanes, _after.storage) <> (_before.lanes, _before.named_lanes, _before.storage) then
            perform postbus.refuse('PB408', format('lanes and storage of topic %L cannot change', name),
                'lanes and storage decide where messages are stored: create another topic');
        end if;
        if (_after.retention, _after.zero_subscription_retention) <> (_before.retention, _before.zero_subscription_retention) then
            update postbus.log_storage s set period = postbus.own_period(_after) where s.topic_id = _after.id;
        end if;
    end if;
    perform postbus.save_topic(_after);
    if (_after.namespace, _after.task, _after.semantics) is distinct from (_before.namespace, _before.task, _before.semantics) then
        perform postbus.join_scopes(_after);
    end if;
    perform postbus.note_change('topic.set', postbus.options_of(_before), postbus.options_of(_after), name);
    return _after;
end $$;

-- Creates a topic with options, such as {"ordered": true, "lease": "1 minute"}. Subscribes the groups whose scopes match it.
-- Refuses a topic that exists. Refuses a name that is in use, if the options would change the order of its messages.
--
-- Writes: topic; see storage_for, join_scopes and note_action.
create or replace function postbus.create_topic(name text, options jsonb default '{}') returns postbus.topic
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic    postbus.topic := postbus.topic_options(name);
    _defaults jsonb := postbus.options_of(_topic);
begin
    if _topic.name is not null then
        perform postbus.refuse('PB409', format('topic %L exists', name), 'change it: postbus topics set ' || name);
    end if;
    _topic.name := name;
    _topic.paused_at := null;
    _topic.created_at := clock_timestamp();
    _topic := postbus.with_options(_topic, options);
    if _topic.ordered or _topic.semantics = 'PUB_SUB' then
        perform postbus.check_idle(_topic, case when _topic.semantics = 'PUB_SUB' then
            format('they are in a QUEUE of this name; move them to groups: postbus topics migrate %s --to PUB_SUB --group GROUP', name) end);
    end if;
    if _topic.semantics = 'PUB_SUB' then
        _topic.storage_id := postbus.storage_for(_topic);
    end if;
    begin
        insert into postbus.topic values (_topic.*);
    exception when unique_violation then
        perform postbus.refuse('PB409', format('topic %L exists', name), 'change it: postbus topics set ' || name);
    end;
    perform postbus.join_scopes(_topic, row(0, '2', '3:3:')::postbus.log_position);        -- the log has none of its messages yet
    perform postbus.note_action('topic.create', name, after => postbus.differing(postbus.options_of(_topic), _defaults));
    return _topic;
end $$;

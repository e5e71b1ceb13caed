-- Changes options of a topic. Groups into whose scopes it comes by that are subscribed.
--
-- Writes: see save_topic, storage_for, begin_move and join_scopes.  Locks: the topic's row.
create or replace function postbus.set_topic(name text, options jsonb) returns postbus.topic
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _before postbus.topic := postbus.existing_topic(name);
    _after  postbus.topic := postbus.with_options(_before, options);
begin
    if _after.ordered <> _before.ordered then
        perform postbus.check_idle(_before);
    end if;
    if _after.semantics <> _before.semantics then
        perform postbus.check_idle(_before);
        if _before.semantics = 'PUB_SUB' then
            perform postbus.refuse('PB408', format('topic %L is PUB_SUB', name),
                'delete it and create it again as a QUEUE: its groups have no meaning there');
        end if;
        _after.storage_id := postbus.storage_for(_after);
        perform postbus.begin_move(_before);        -- messages of transactions that are open now are not seen here
    elsif _after.semantics = 'PUB_SUB' then
        if (_after.lanes, _after.named_lanes, _after.storage) <> (_before.lanes, _before.named_lanes, _before.storage) then
            perform postbus.refuse('PB408', format('lanes and storage of topic %L cannot change', name),
                'they decide where messages are: create another topic');
        elsif _after.storage = 'shared' and postbus.storage_for(_after) <> _before.storage_id then
            perform postbus.refuse('PB408', format('topic %L shares storage with topics of its retention', name),
                'stay within it, or create a topic with storage own');
        end if;
    end if;
    perform postbus.save_topic(_after);
    if (_after.namespace, _after.task, _after.semantics) is distinct from (_before.namespace, _before.task, _before.semantics) then
        perform postbus.join_scopes(_after);
    end if;
    return _after;
end $$;

-- Refuses a topic that groups cannot subscribe to.
create or replace function postbus.check_is_log(topic postbus.topic, name text, group_name text) returns void
language plpgsql as $$
begin
    if topic.storage_id is not null then
        return;
    elsif topic.name is null and not exists (select from postbus.topic_seen s where s.topic_id = topic.id) then
        perform postbus.refuse('PB432', format('there is no topic %L, and publishing to it would make it a QUEUE', name),
            format('create it: postbus topics create %s --semantics PUB_SUB; or leave the group out', name));
    else
        perform postbus.refuse('PB432', format('topic %L is a QUEUE', name),
            format('leave the group out; or make it PUB_SUB, with its messages: postbus topics migrate %s --to PUB_SUB --group %s',
                   name, group_name));
    end if;
end $$;

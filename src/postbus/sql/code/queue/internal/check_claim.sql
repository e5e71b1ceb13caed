-- Refuses invalid parameters of a claim, and a claim from a PUB_SUB topic. If the topic was a queue, and messages are left in the
-- queue, these may be claimed: then moved is true, and ordered says whether the queue was ordered.
create or replace function postbus.check_claim(
    topic     postbus.topic,
    name      text,
    member    text,
    max_count integer,
    lease     interval,
    out moved   boolean,
    out ordered boolean
)
language plpgsql as $$
begin
    ordered := topic.ordered;
    perform postbus.check_member(member);
    if max_count is null or max_count < 1 then
        perform postbus.refuse('PB402', format('max_count %s is less than 1', max_count), 'claim one message or more');
    elsif lease <= interval '0' or lease > interval '1000 years' then
        perform postbus.check_lease(lease);
    elsif topic.storage_id is not null then
        select true, m.ordered into moved, ordered from postbus.moving m where m.topic_id = topic.id;
        if moved is null then
            perform postbus.refuse('PB432', format('topic %L is PUB_SUB', name),
                'name the group that the messages are for: group=NAME in Python, --group NAME, "group" over HTTP, group_name in SQL');
        end if;
    end if;
end $$;

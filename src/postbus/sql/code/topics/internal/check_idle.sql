-- Refuses a topic that has messages in its queue or its log. Dead letters and finished messages do not count. The caller may give
-- a remedy.
create or replace function postbus.check_idle(topic postbus.topic, remedy text default null) returns void
language plpgsql
set search_path = pg_catalog, pg_temp as $$
begin
    if exists (select from postbus.queued q where q.topic_id = topic.id)
       or exists (select from postbus.delayed d where d.topic_id = topic.id)
       or exists (select from postbus.lease l where l.topic_id = topic.id)
       or postbus.has_segments(topic)
    then
        perform postbus.refuse('PB408', format('topic %L has messages', topic.name),
            case when remedy is not null then remedy
                 when topic.storage_id is null then 'let them be consumed first, or drop them: postbus topics purge ' || topic.name
                 else 'create another topic, or delete this one with its messages: postbus topics delete --force ' || topic.name end);
    end if;
end $$;

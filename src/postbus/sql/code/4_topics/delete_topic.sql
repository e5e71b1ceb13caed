-- Deletes a topic. Refuses one that has messages, unless `force` is given: then they are deleted too,
-- dead letters included, and whoever holds some of them has lost the lease.
--
-- Writes: topic and all that belongs to it.  Locks: the topic's row.
create or replace function postbus.delete_topic(name text, force boolean default false) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic postbus.topic := postbus.existing_topic(name);
begin
    if not force then
        perform postbus.check_idle(_topic);
        if exists (select from postbus.dead_letter d where d.topic_id = _topic.id) then
            perform postbus.refuse('PB408', format('topic %L has dead letters', name),
                format('put them back: postbus dead-letters redrive %s --all; or delete it with them: postbus topics delete %s --force', name, name));
        end if;
    end if;
    if _topic.storage_id is not null then
        perform postbus.delete_log(_topic, force);
    end if;
    delete from postbus.queued q where q.topic_id = _topic.id;
    delete from postbus.delayed d where d.topic_id = _topic.id;
    delete from postbus.lease l where l.topic_id = _topic.id;
    delete from postbus.busy_key b where b.topic_id = _topic.id;
    delete from postbus.finished f where f.topic_id = _topic.id;
    delete from postbus.dead_letter d where d.topic_id = _topic.id;
    delete from postbus.dedup d where d.topic_id = _topic.id;
    delete from postbus.topic_seen s where s.topic_id = _topic.id;
    delete from postbus.topic t where t.id = _topic.id;
end $$;

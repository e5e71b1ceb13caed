-- Deletes a topic. Refuses a topic that has messages, unless `force` is given: then its messages and dead letters are deleted, too,
-- and leases on them are lost.
--
-- Writes: topic and all that belongs to it; see note_action.  Locks: the topic's row.
create or replace function postbus.delete_topic(name text, force boolean default false) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic  postbus.topic := postbus.existing_topic(name);
    _count  bigint;       -- messages of all kinds
    _groups bigint;
begin
    if not force then
        perform postbus.check_idle(_topic);
        if exists (select from postbus.dead_letter d where d.topic_id = _topic.id) then
            perform postbus.refuse('PB408', format('topic %L has dead letters', name),
                format('publish them again: postbus dead-letters redrive %s --all; or delete the topic with them: postbus topics delete %s --force',
                       name, name));
        end if;
    end if;
    _groups := (select count(*) from postbus.subscription s where s.topic_id = _topic.id and s.state <> 'CANCELLED' and s.catch_up_of is null);
    _count := (select count(*) from postbus.queued q where q.topic_id = _topic.id)
              + (select count(*) from postbus.delayed d where d.topic_id = _topic.id)
              + (select coalesce(sum(cardinality(l.open_ids)), 0) from postbus.lease l where l.topic_id = _topic.id)
              + (select count(*) from postbus.dead_letter d where d.topic_id = _topic.id)
              + (select coalesce(sum(s.count), 0) from postbus.segment s where s.storage_id = _topic.storage_id and s.topic_id = _topic.id);
    perform postbus.note_action('topic.delete', name, affected => _count, given => jsonb_build_object('force', force),
                                before => postbus.options_of(_topic) || jsonb_build_object('groups', _groups));
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

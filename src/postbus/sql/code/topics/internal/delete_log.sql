-- Deletes what a PUB_SUB topic has in the log, and its subscriptions. Refuses a topic that a group is subscribed to, unless
-- `force` is given. The topic's own log storage is dropped, which needs a moment in which no transaction has published to any
-- topic: the function refuses rather than waits, since all publishers would wait behind it.
--
-- Writes: segment, partition_topic, stretch, joining, subscription and all that belongs to it, scope.
-- Locks: segment and the storage's own tables, to drop these.
create or replace function postbus.delete_log(topic postbus.topic, force boolean) returns void
language plpgsql as $$
declare
    _ids bigint[] := array(select s.id from postbus.subscription s where s.topic_id = topic.id
                            union select st.subscription_id from postbus.stretch st where st.topic_id = topic.id);
begin
    if not force and exists (select from postbus.subscription s where s.topic_id = topic.id and s.state <> 'CANCELLED') then
        perform postbus.refuse('PB408', format('topic %L has groups', topic.name),
            format('cancel them: postbus groups cancel %s GROUP; or delete the topic with them: postbus topics delete %s --force',
                   topic.name, topic.name));
    end if;
    perform postbus.forget_subscriptions(_ids, with_past => false);
    delete from postbus.stretch st where st.topic_id = topic.id;
    delete from postbus.joining j where j.topic_id = topic.id;
    delete from postbus.receipt_partition r where r.subscription_id = any (_ids);
    delete from postbus.scope c where c.topic = (delete_log.topic).name;
    delete from postbus.moving m where m.topic_id = topic.id;
    delete from postbus.topic_count c where c.topic_id = topic.id;
    delete from postbus.partition_topic part where part.storage_id = topic.storage_id and part.topic_id = topic.id;
    if topic.storage = 'own' then
        begin
            perform set_config('lock_timeout', '200ms', true);
            lock table only postbus.segment in access exclusive mode;
            execute format('lock table postbus.%I in access exclusive mode', format('segment_%s', topic.storage_id));
        exception when lock_not_available then
            perform postbus.refuse('PB408', format('storage of topic %L cannot be dropped while a transaction that has published is open',
                                                   topic.name), 'try again when that transaction has ended');
        end;
        execute format('drop table postbus.%I cascade', format('segment_%s', topic.storage_id));
        execute format('drop table postbus.%I cascade', format('receipt_%s', topic.storage_id));
        execute format('drop sequence %s', postbus.epoch_sequence(topic.storage_id));
        delete from postbus.log_partition l where l.storage_id = topic.storage_id;
        delete from postbus.storage_count c where c.storage_id = topic.storage_id;
        delete from postbus.sweep_job j where j.storage_id = topic.storage_id;
        delete from postbus.log_storage s where s.id = topic.storage_id;
    else
        delete from postbus.segment s where s.storage_id = topic.storage_id and s.topic_id = topic.id;
        delete from postbus.receipt r where r.storage_id = topic.storage_id and r.subscription_id = any (_ids);
    end if;
end $$;

-- Subscribes a group of another outbox, from now on. It gets messages that were imported before only by import_deferred in the same
-- transaction. Refuses a group that is subscribed already, since its position is not that of the import. Has to be called at the
-- beginning of a transaction.
--
-- Writes: imported_group; see subscribe.
create or replace function postbus.import_group(source text, topic text, group_name text, state text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if not (select s.is_new from postbus.subscribe(topic, group_name) as s) then
        perform postbus.refuse('PB433', format('group %L is subscribed to topic %L already', group_name, topic),
            format('import before the group is started; or forget its position here: postbus groups cancel %s %s', topic, group_name));
    end if;
    if state = 'PAUSED' then
        perform postbus.set_group_state(topic, group_name, state);
    end if;
    insert into postbus.imported_group (source, topic_id, group_name)
    values (import_group.source, postbus.topic_id(topic), import_group.group_name);
end $$;

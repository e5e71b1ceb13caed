-- Subscribes the groups whose scopes match a topic by its new options. A transaction that has written cannot take a position. It
-- uses a position without a sequence instead, which is as good but slower to read from.
--
-- A session that records a scope at the same time waits until this transaction has ended, and then sees the topic; or else this
-- transaction waits for that session.
--
-- Writes: see join_topic.  Locks: an advisory lock for the transaction, shared.
create or replace function postbus.join_scopes(topic postbus.topic, "position" postbus.log_position default null) returns void
language plpgsql as $$
declare
    _scope postbus.scope;
begin
    if topic.storage_id is null then
        return;
    end if;
    perform pg_advisory_xact_lock_shared(hashtext('postbus.scope'));
    for _scope in
        select distinct on (c.group_name) c.* from postbus.scope c
         where c.key is null and postbus.in_scope(c, join_scopes.topic) order by c.group_name, c.recorded_at desc
    loop
        perform postbus.check_cluster();
        position := coalesce(position, row(0, pg_current_xact_id(), pg_current_snapshot())::postbus.log_position);
        perform postbus.join_topic(_scope, topic, position);
    end loop;
end $$;

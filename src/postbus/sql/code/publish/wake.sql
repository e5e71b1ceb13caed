-- Wakes the consumers of topics. Called after the publishing transaction, by the process that published: a NOTIFY within the
-- transaction would make all commits of the database wait for one another. Returns the topics that notify in the transaction
-- anyway: their consumers need no other wake-up.
create or replace function postbus.wake(topic_ids bigint[]) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _notified bigint[] := array(select t.id from postbus.topic t where t.id = any (topic_ids) and t.notify);
begin
    perform pg_notify('postbus', wanted.id::text) from unnest(topic_ids) as wanted (id) where wanted.id <> all (_notified);
    return _notified;
end $$;

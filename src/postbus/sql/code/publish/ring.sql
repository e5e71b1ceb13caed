-- Wakes the consumers of topics. Called after the publishing transaction, by the process that published:
-- a NOTIFY inside it would make all commits of the database wait for one another.
-- Returns those topics that have asked for just that, and so need nobody to ring for them.
create or replace function postbus.ring(topic_ids bigint[]) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _rung bigint[] := array(select t.id from postbus.topic t where t.id = any (topic_ids) and t.notify);
begin
    perform pg_notify('postbus', wanted.id::text) from unnest(topic_ids) as wanted (id) where wanted.id <> all (_rung);
    return _rung;
end $$;

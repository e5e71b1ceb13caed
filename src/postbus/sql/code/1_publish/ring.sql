-- Wakes the consumers of topics. Called after the publishing transaction, by the process that published:
-- a NOTIFY inside it would make all commits of the database wait for one another.
create or replace function postbus.ring(topic_ids bigint[]) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select pg_notify('postbus', topic_id::text) from unnest(topic_ids) as topic_id
$$;

-- The topics that the caller may read.
create or replace function postbus_topics.readable() returns setof text
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select known.name
      from (select t.name from postbus.topic t where t.id <> 0 union select s.name from postbus.topic_seen s) as known
     where postbus.is_granted('read', known.name)
$$;

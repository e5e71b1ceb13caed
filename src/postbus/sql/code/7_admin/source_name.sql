-- What tells the messages of this database from those of others: the server's identifier, and the database's name.
create or replace function postbus.source_name() returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select format('postbus/%s/%s', coalesce(c.identifier, (extract(epoch from c.noted_at) * 1000000)::bigint), current_database())
      from postbus.cluster c
$$;

-- Tells that a relay of a topic, in this process, cannot reach its sink; to be told again while it is so. group_name is null for
-- a QUEUE.
--
-- Writes: sink_away.
create or replace function postbus.note_sink_away(topic text, group_name text, process text, sink text, error text) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    insert into postbus.sink_away as known (topic, group_name, process, sink, error)
    values (topic, coalesce(group_name, ''), process, left(sink, 500), left(error, 1000))
    on conflict on constraint sink_away_pkey do update set error = excluded.error, sink = excluded.sink, told_at = clock_timestamp()
$$;

-- Notes that a relay of a topic, in this process, cannot reach its sink; repeated while that is so. group_name is null for a QUEUE.
-- A row that was written with a secret is changed with that secret only.
--
-- Writes: sink_away.
create or replace function postbus.note_sink_away(
    topic      text,
    group_name text,
    process    text,
    sink       text,
    error      text,
    secret     uuid default null
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_label(process);
    insert into postbus.sink_away as known (topic, group_name, process, sink, error, secret)
    values (left(note_sink_away.topic, 200), left(coalesce(note_sink_away.group_name, ''), 200), note_sink_away.process,
            postbus.in_line(note_sink_away.sink, 500), left(note_sink_away.error, 1000), note_sink_away.secret)
    on conflict on constraint sink_away_pkey do update
       set error = excluded.error, sink = excluded.sink, told_at = clock_timestamp()
     where known.secret is null or known.secret = excluded.secret;
    if not found then
        perform postbus.refuse_process(process);
    end if;
end $$;

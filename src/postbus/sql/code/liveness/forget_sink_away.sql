-- Notes that a relay has reached its sink again, or has ended. It gives the same secret as note_sink_away.
--
-- Writes: sink_away.
create or replace function postbus.forget_sink_away(topic text, group_name text, process text, secret uuid default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _known postbus.sink_away;
begin
    select * into _known from postbus.sink_away a
     where a.topic = forget_sink_away.topic and a.group_name = coalesce(forget_sink_away.group_name, '')
       and a.process = forget_sink_away.process;
    if _known.secret <> coalesce(forget_sink_away.secret, gen_random_uuid()) then
        perform postbus.refuse_process(process);
    end if;
    delete from postbus.sink_away a
     where a.topic = _known.topic and a.group_name = _known.group_name and a.process = _known.process;
end $$;

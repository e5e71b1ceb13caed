-- One message of the log, by its id. Refuses a message that is not there.
create or replace function postbus.log_message(topic text, id bigint) returns setof postbus.log
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _found record;
begin
    select * into _found from postbus.find_message(topic, id);
    -- The sequence is a constant, so that no other partition has to be read.
    return query execute format('select l.* from postbus.log l where l.topic_id = $1 and l.sequence = %s and l.index = $2', _found.sequence)
       using _found.topic_id, _found.index;
end $$;

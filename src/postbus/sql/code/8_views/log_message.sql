-- One message of the log, found at once. Refuses one that is not there.
create or replace function postbus.log_message(topic text, id bigint) returns setof postbus.log
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select l.*
      from postbus.find_message(log_message.topic, log_message.id) as m
      join postbus.log l on l.position = m.position and l.topic_id = m.topic_id and l.index = m.index
$$;

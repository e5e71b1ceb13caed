-- The current end of the log of a topic. It is no position to read from: see take_position.
create or replace function postbus.log_end(topic_id bigint) returns postbus.log_position
language sql volatile as $$
    select row(postbus.last_sequence(t.storage_id), null, pg_current_snapshot())::postbus.log_position
      from postbus.topic t where t.id = log_end.topic_id
$$;

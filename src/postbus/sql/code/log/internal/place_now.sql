-- What is in the log of a topic now. Not a place to read from: that is `here`.
create or replace function postbus.place_now(topic_id bigint) returns postbus.log_place
language sql volatile as $$
    select row(postbus.last_position(t.storage_id), null, pg_current_snapshot())::postbus.log_place
      from postbus.topic t where t.id = place_now.topic_id
$$;

-- Counts the messages that a position shows and that are ahead of a cursor in all lanes of a topic: see count_ahead.
create or replace function postbus.count_unseen(topic postbus.topic, cursor postbus.log_cursor, until postbus.log_position) returns bigint
language sql volatile as $$
    select a.messages from postbus.count_ahead(topic, array_fill(cursor, array[topic.lanes]), until, null) as a
$$;

-- How many messages of a topic that a place shows a cursor has before it, in all lanes: see count_ahead.
create or replace function postbus.count_unseen(topic postbus.topic, cursor postbus.log_cursor, until postbus.log_place) returns bigint
language sql volatile as $$
    select a.messages from postbus.count_ahead(topic, array_fill(cursor, array[topic.lanes]), until, null) as a
$$;

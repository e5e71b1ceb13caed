-- Counts the messages that a position shows and that are ahead of a group, with those of unwanted keys, as for its lag. from_id is
-- the id from which on there are `newest` of them: see count_ahead.
create or replace function postbus.count_before(
    subscription_id bigint,
    topic           postbus.topic,
    until           postbus.log_position,
    newest          bigint,
    out messages    bigint,
    out from_id     bigint
)
language sql volatile as $$
    select a.messages, a.from_id
      from postbus.count_ahead(topic, array(select c.cursor from postbus.current_cursor c
                                             where c.subscription_id = count_before.subscription_id order by c.lane), until, newest) as a
$$;

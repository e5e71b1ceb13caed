-- Notes that a QUEUE becomes PUB_SUB in this transaction: what is in the queue, or is put there by transactions that have
-- begun to publish, can still be claimed. See move_topic and continue_moves.
--
-- Order follows ids: what is in the queue keeps its own, and the log's begin above them, with room for what is on its way.
--
-- Writes: moving, log_position.
create or replace function postbus.begin_move(topic postbus.topic, heir bigint default null, hand_over boolean default false) returns void
language plpgsql as $$
begin
    perform nextval('postbus.log_position')
       from generate_series(coalesce(pg_sequence_last_value('postbus.log_position'), 0),
                            (coalesce(pg_sequence_last_value('postbus.message_id'), 0) + 1000000) / 1024);
    insert into postbus.moving (topic_id, ordered, first_id, heir, hand_over)
    values (topic.id, topic.ordered, nextval('postbus.log_position') * 1024, begin_move.heir, begin_move.hand_over);
end $$;

-- Notes that a QUEUE becomes PUB_SUB in this transaction: what is in the queue, or is put there by transactions that have
-- begun to publish, can still be claimed. See move_topic and continue_moves.
--
-- Order follows ids: what is in the queue keeps its own, and the log's begin above them, with room for what is on its way.
--
-- Writes: moving, log_position.  Locks: others who do the same.
create or replace function postbus.begin_move(topic postbus.topic, heir bigint default null, hand_over boolean default false) returns void
language plpgsql as $$
declare
    _last bigint;
    _goal bigint;
begin
    perform pg_advisory_xact_lock(hashtext('postbus.begin_move'));
    _last := coalesce(pg_sequence_last_value('postbus.log_position'), 0);
    _goal := coalesce(pg_sequence_last_value('postbus.message_id'), 0) / 1024 + 1000000;
    if _last < _goal then       -- by so much that nobody who takes numbers meanwhile gets there
        perform setval('postbus.log_position', _goal + 1000000);
    end if;
    insert into postbus.moving (topic_id, ordered, first_id, heir, hand_over)
    values (topic.id, topic.ordered, nextval('postbus.log_position') * 1024, begin_move.heir, begin_move.hand_over);
end $$;

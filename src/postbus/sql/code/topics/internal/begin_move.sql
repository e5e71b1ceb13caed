-- Notes that a QUEUE becomes PUB_SUB in this transaction. Messages that are in the queue, or that open transactions publish to the
-- queue, can still be claimed. See move_topic and continue_moves.
--
-- Order follows ids: messages in the queue keep theirs, and the ids of the log begin above them, with room for messages that are
-- just being published.
--
-- Writes: moving, segment_number.  Locks: an advisory lock for the transaction.
create or replace function postbus.begin_move(topic postbus.topic, heir bigint default null, hand_over boolean default false) returns void
language plpgsql as $$
declare
    _last bigint;
    _goal bigint;
begin
    perform pg_advisory_xact_lock(hashtext('postbus.begin_move'));
    _last := coalesce(pg_sequence_last_value('postbus.segment_number'), 0);
    _goal := coalesce(pg_sequence_last_value('postbus.message_id'), 0) / 1024 + 1000000;
    if _last < _goal then       -- so far that no session which takes numbers meanwhile gets there
        perform setval('postbus.segment_number', _goal + 1000000);
    end if;
    insert into postbus.moving (topic_id, ordered, first_id, heir, hand_over)
    values (topic.id, topic.ordered, nextval('postbus.segment_number') * 1024, begin_move.heir, begin_move.hand_over);
end $$;

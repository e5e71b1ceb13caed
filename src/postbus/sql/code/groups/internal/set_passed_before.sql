-- Sets the number of messages that the lag of a group does not count: all that a position shows, without those ahead of the cursor,
-- and without those that the group has passed.
--
-- Writes: subscription.
create or replace function postbus.set_passed_before(
    subscription_id bigint,
    topic           postbus.topic,
    cursor          postbus.log_cursor,
    "position"      postbus.log_position
) returns void
language plpgsql as $$
declare
    _here    postbus.log_cursor;
    _known   record;
    _counter postbus.log_cursor;
    _count   bigint;
begin
    _here.seen := position;
    -- In one statement: the two belong together.
    select coalesce((select c.messages from postbus.topic_count c where c.topic_id = topic.id), 0) as messages,
           (select c.cursor from postbus.storage_count c where c.storage_id = topic.storage_id) as cursor
      into _known;
    _counter.seen := coalesce((_known.cursor).seen, row(0, '2', '3:3:')::postbus.log_position);
    -- The counter may be behind the position, or past it.
    _count := _known.messages + postbus.count_unseen(topic, _counter, position)
                     - postbus.count_unseen(topic, _here, _counter.seen)
                     - postbus.count_unseen(topic, cursor, position);
    update postbus.subscription s
       set passed_before = _count - coalesce((select sum(c.passed) from postbus.current_cursor c where c.subscription_id = s.id), 0)
     where s.id = set_passed_before.subscription_id;
end $$;

-- Counts the messages left in the queue of a topic that became PUB_SUB. Its groups begin when all of them are done but those that
-- are scheduled for later, which are delivered when they are due.
create or replace function postbus.left_in_queue(
    topic_id      bigint,
    as_of         timestamptz,
    out waiting   bigint,
    out retrying  bigint,
    out leased    bigint,
    out scheduled bigint
)
language sql stable as $$
    select (select count(*) from postbus.queued q where q.topic_id = left_in_queue.topic_id and not q.parked)
           + (select count(*) from postbus.queued q where q.topic_id = left_in_queue.topic_id and q.ordered and q.parked),   -- each has an index
           count(*) filter (where d.attempts > 0 or d.due_at <= as_of or d.trial is not null),
           (select coalesce(sum(cardinality(l.open_ids)), 0) from postbus.lease l where l.topic_id = left_in_queue.topic_id),
           count(*) filter (where d.attempts = 0 and d.due_at > as_of and d.trial is null)
      from postbus.delayed d where d.topic_id = left_in_queue.topic_id
$$;

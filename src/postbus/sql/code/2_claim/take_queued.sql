-- Takes messages that were found out of the queue, in the order given. Counts the attempt: it begins now.
--
-- Writes: queued.  Locks: none but those of find_queued.
create or replace function postbus.take_queued(tids tid[]) returns postbus.queue_message[]
language plpgsql as $$
declare
    _taken postbus.queue_message[];
begin
    with taken as (
        delete from postbus.queued q using unnest(tids) with ordinality as wanted (tid, n) where q.ctid = wanted.tid
        returning wanted.n, row(q.id, q.published_at, q.attempts + 1, q.priority, q.key, q.correlation_id, q.content_type,
                                q.headers, q.payload)::postbus.queue_message as message
    )
    select array_agg(taken.message order by taken.n) into _taken from taken;
    return _taken;
end $$;

-- Gives the messages left in the queue of a topic that became PUB_SUB to a group, as deferred messages: all at once, or one after
-- the other if the queue was ordered. Scheduled messages follow when they are due. Messages keep their ids, and their sequences are
-- below all sequences of the log. A message that came too late for that gets another id, and carries its event id as a header from
-- then on: see event_id.
--
-- Writes: queued, delayed, deferred.  Locks: the group's lane rows; queued and delayed rows (skip locked).
create or replace function postbus.hand_over(
    topic           postbus.topic,
    subscription_id bigint,
    first_id        bigint,
    is_ordered      boolean,
    as_of           timestamptz
) returns bigint
language plpgsql as $$
declare
    _epoch bigint := postbus.epoch(topic.storage_id);
    _line  record;
    _count bigint := 0;
begin
    perform from postbus.lane l where l.subscription_id = hand_over.subscription_id order by l.lane for update;
    for _line in
        with waiting as (
            select q.ctid from postbus.queued q where q.topic_id = topic.id for update skip locked
        ), due as (
            select d.ctid from postbus.delayed d
             where d.topic_id = topic.id and (d.due_at <= as_of or d.attempts > 0 or d.trial is not null) for update skip locked
        ), taken as (
            delete from postbus.queued q using waiting where q.ctid = waiting.ctid
            returning q.id, as_of as due_at, q.attempts, false as suspected, null::text as last_error, q.published_at, q.key, q.correlation_id,
                      q.content_type, q.headers, q.payload
        ), taken_later as (
            delete from postbus.delayed d using due where d.ctid = due.ctid
            returning d.id, d.due_at, d.attempts, d.trial is not null as suspected, d.last_error, d.published_at, d.key, d.correlation_id,
                      d.content_type, d.headers, d.payload
        ), given as materialized (
            select one.*, case when one.id < first_id then one.id else nextval('postbus.segment_number') * 1024 end as log_id,
                   case when one.id < first_id then one.headers
                        else coalesce(one.headers, '{}') || jsonb_build_object(
                            'event-id', postbus.event_id(topic.name, one.id, one.published_at, one.headers)) end as log_headers
              from (select * from taken union all select * from taken_later) as one
        ), kept as (
            insert into postbus.deferred (subscription_id, lane, id, sequence, parked, due_at, attempts, suspected, last_error, kept_from,
                                          published_at, key, correlation_id, content_type, headers, payload)
            select hand_over.subscription_id, coalesce(postbus.lane_of(g.key, topic.lanes), (g.id % topic.lanes)::integer), g.log_id,
                   case when g.log_id < first_id then g.log_id else (_epoch << 43) + (g.log_id >> 10) end, g.key is not null,
                   greatest(g.due_at, as_of), g.attempts, g.suspected, g.last_error, as_of, g.published_at, g.key, g.correlation_id,
                   g.content_type, g.log_headers, g.payload
              from given g
            returning deferred.lane, deferred.key
        )
        select k.lane, array_agg(distinct k.key) filter (where k.key is not null) as keys, count(*) as count from kept k group by k.lane
    loop
        _count := _count + _line.count;
        if is_ordered then      -- none of these is in hand: a late message may have a sequence below theirs
            update postbus.deferred r set parked = true
             where r.subscription_id = hand_over.subscription_id and r.lane = _line.lane and r.key = any (_line.keys) and not r.parked;
        end if;
        perform postbus.unpark_next(subscription_id, _line.lane, _line.keys, as_of);
    end loop;
    return _count;
end $$;

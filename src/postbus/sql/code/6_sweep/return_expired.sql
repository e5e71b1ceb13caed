-- Gives back what is leased beyond the end of its lease: to the queue, or, where the attempts are
-- used up, to the dead letters. Returns the number of messages.
--
-- At once after a first attempt: a worker died. After more of them one message may be what kills the workers, and
-- those that were in hand with it would go on dying with it. So each then waits for a time of its own.
--
-- Looks at leases that ended after `since` only, if it is given: leases that ended long ago have been
-- returned already, and stepping over what they left behind costs time.
--
-- Writes: lease, queued, delayed, dead_letter, sweep_job.  Locks: lease rows (skip locked), then busy_key rows.
create or replace function postbus.return_expired(
    max_count integer default 1000,
    since     timestamptz default '-infinity',
    as_of     timestamptz default clock_timestamp()
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _lease postbus.lease;
    _topic postbus.topic;
    _held  text;
    _open  postbus.queue_message[];
    _count bigint := 0;
    _began timestamptz := clock_timestamp();
begin
    for _lease in
        select l.* from postbus.lease l
         where l.ends_at > since and l.ends_at <= as_of
         order by l.ends_at limit max_count for update skip locked
    loop
        delete from postbus.lease l where l.token = _lease.token;
        select * into _topic from postbus.topic t where t.id in (_lease.topic_id, 0) order by t.id = 0 limit 1;
        _held := format('last held by %s', _lease.member);
        _open := array(select m from unnest(_lease.messages) as m where m.id = any (_lease.open_ids));
        perform postbus.requeue(_lease.topic_id, _lease.ordered,
                                array(select m from unnest(_open) as m where m.attempts < least(_topic.max_attempts, 2)));
        perform postbus.try_later(_lease.topic_id, _lease.ordered,
                                  array(select m from unnest(_open) as m where m.attempts >= 2 and m.attempts < _topic.max_attempts),
                                  _topic, null, format('the lease ended without an answer; %s', _held), as_of);
        perform postbus.bury(_lease.topic_id, _lease.ordered, array_agg(m),
                             format('the lease ended %s times without an answer', _topic.max_attempts), _held, as_of)
           from unnest(_open) as m where m.attempts >= _topic.max_attempts having count(*) > 0;
        _count := _count + cardinality(_open);
    end loop;
    perform postbus.note_run('return_expired', 0, _count, s.interval, _began, as_of) from postbus.sweep_setting s;
    return _count;
end $$;

-- Returns messages whose lease has ended: their process has ended, or hangs. Returns the number of messages.
--
-- A message that was alone in hand is charged the attempt. It is tried alone again, after the topic's backoff from the second time
-- on, or becomes a dead letter if its attempts are used up. If several messages were in hand, any of them may have ended the
-- process, or none; some handlers may not have been called at all. These messages become suspects: no attempt is charged, and they
-- are tried apart from others, finally one by one. See claim_suspects.
--
-- If `since` is given, only leases that ended after it are considered. Earlier ones have been returned already, and stepping over
-- the dead rows that they left takes time.
--
-- Writes: lease, delayed, dead_letter, sweep_job.  Locks: lease rows (skip locked), then busy_key rows.
create or replace function postbus.return_expired_as_of(
    max_count integer default 1000,
    since     timestamptz default '-infinity',
    as_of     timestamptz default clock_timestamp()
) returns bigint
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _lease    postbus.lease;
    _topic    postbus.topic;
    _holder   text;
    _open     postbus.queue_message[];
    _together jsonb := (select jsonb_object_agg(hand.member || ' ' || hand.topic_id, hand.count)
                          from (select l.member, l.topic_id, sum(cardinality(l.open_ids)) as count from postbus.lease l
                                 where l.ends_at > since and l.ends_at <= as_of group by 1, 2) as hand);     -- messages in hand together
    _count    bigint := 0;
    _began    timestamptz := clock_timestamp();
begin
    for _lease in
        select l.* from postbus.lease l
         where l.ends_at > since and l.ends_at <= as_of
         order by l.ends_at limit max_count for update skip locked
    loop
        delete from postbus.lease l where l.token = _lease.token;
        select * into _topic from postbus.topic t where t.id in (_lease.topic_id, 0) order by t.id = 0 limit 1;
        _holder := format('last held by %s', postbus.in_line(_lease.member, 300));
        _open := array(select m from unnest(_lease.messages) as m where m.id = any (_lease.open_ids));
        if cardinality(_open) <> 1 or not coalesce(_lease.alone, postbus.was_alone(_lease.member)) then
            perform postbus.make_suspects(_lease.topic_id, _lease.ordered, _open,
                                    (_together ->> (_lease.member || ' ' || _lease.topic_id))::bigint, _holder, _lease.outlasted, as_of);
        elsif _open[1].attempts < _topic.max_attempts then
            perform postbus.delay_retry(_lease.topic_id, _lease.ordered, _open, _topic,
                                      case when _open[1].attempts < 2 then least(as_of, clock_timestamp()) - as_of end,
                                      format('the lease ended without an answer; %s', _holder), as_of, trial => 1, outlasted => _lease.outlasted);
        else
            perform postbus.give_up_messages(_lease.topic_id, _lease.ordered, _open,
                                 format('the lease ended %s times without an answer', _topic.max_attempts),
                                 _holder, as_of);
        end if;
        _count := _count + cardinality(_open);
    end loop;
    perform postbus.note_run('return_expired', 0, _count, s.interval, _began, as_of) from postbus.sweep_setting s;
    return _count;
end $$;

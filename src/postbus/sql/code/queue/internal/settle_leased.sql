-- Settles messages of a lease: 'done', 'retry', 'dead', or 'release' for an attempt that does not count. The lease is the fence
-- that every settlement passes: messages that are not open in the lease are lost, and nothing changes for them. If no lease of a
-- queue has the token, it may be that of a group's pop.
-- Returns what became of each message: 'done', 'retried', 'dead', 'released' or 'lost'.
--
-- Writes: lease, finished, delayed, dead_letter, queued; see settle_popped.  Locks: the lease row, then busy_key rows.
create or replace function postbus.settle_leased(
    token        uuid,
    ids          bigint[],
    outcome      text,
    delay        interval default null,
    error        text default null,
    reason       text default null,
    max_attempts integer default null,
    as_of        timestamptz default clock_timestamp()
) returns table (message_id bigint, became text)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _lease    postbus.lease;
    _messages postbus.queue_message[];
    _left     bigint[];
    _topic    postbus.topic;
    _limit    integer;
    _spent    postbus.queue_message[];
begin
    select * into _lease from postbus.lease l where l.token = settle_leased.token for update;
    if _lease.token is null then
        return query select * from postbus.settle_popped(token, ids, outcome, delay, error, reason, max_attempts, as_of);
        return;
    end if;
    _messages := array(select message from unnest(_lease.messages) as message
                        where message.id = any (ids) and message.id = any (_lease.open_ids));
    _left := array(select open.id from unnest(_lease.open_ids) as open (id) where (open.id = any (ids)) is not true);
    if cardinality(_left) = 0 then
        delete from postbus.lease l where l.token = settle_leased.token;
    elsif cardinality(_messages) > 0 then
        update postbus.lease l set open_ids = _left where l.token = settle_leased.token;
    end if;
    if cardinality(_messages) = 0 then
        null;
    elsif outcome = 'done' then
        perform postbus.keep_finished(_lease.topic_id, _lease.member, _lease.ordered, _messages);
    elsif outcome = 'release' then
        perform postbus.requeue(_lease.topic_id, _lease.ordered, array(
            select row(m.id, m.published_at, m.attempts - 1, m.priority, m.key, m.correlation_id, m.content_type,
                       m.headers, m.payload)::postbus.queue_message
              from unnest(_messages) as m));
    elsif outcome = 'dead' then
        perform postbus.give_up_messages(_lease.topic_id, _lease.ordered, _messages, reason, error, as_of);
    else
        select * into _topic from postbus.topic t where t.id in (_lease.topic_id, 0) order by t.id = 0 limit 1;
        _limit := coalesce(max_attempts, _topic.max_attempts);
        _spent := array(select m from unnest(_messages) as m where m.attempts >= _limit);
        if cardinality(_spent) > 0 then
            perform postbus.give_up_messages(_lease.topic_id, _lease.ordered, _spent, format('failed %s times', _limit), error, as_of);
        end if;
        perform postbus.delay_retry(_lease.topic_id, _lease.ordered, array(select m from unnest(_messages) as m where m.attempts < _limit),
                                  _topic, delay, error, as_of);
    end if;
    return query
    select wanted.id,
           case when m.id is null then 'lost' when outcome = 'retry' and m.attempts < _limit then 'retried'
                when outcome = 'done' then 'done' when outcome = 'release' then 'released' else 'dead' end
      from unnest(ids) as wanted (id)
      left join unnest(_messages) as m on m.id = wanted.id;
end $$;

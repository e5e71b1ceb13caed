-- Gives messages of a lease back for another attempt, after `delay` or the topic's backoff. Those
-- that have had max_attempts (or the topic's) become dead letters.
-- Says of each id what became of it: 'retried', 'dead' or 'lost'.
--
-- In an ordered topic the message stays the head of its key, so the key waits for it.
--
-- Writes: lease, delayed or dead_letter.  Locks: the lease row, then busy_key rows.
create or replace function postbus.retry(
    token        uuid,
    ids          bigint[],
    delay        interval default null,
    error        text default null,
    max_attempts integer default null
) returns table (message_id bigint, outcome text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _now      timestamptz := clock_timestamp();
    _closed   record;
    _lease    postbus.lease;
    _messages postbus.queue_message[];
    _topic    postbus.topic;
    _limit    integer;
    _spent    postbus.queue_message[];
begin
    if delay < interval '0' or delay > interval '1000 years' then
        perform postbus.check_delay(delay);
    end if;
    select * into _closed from postbus.close_messages(token, ids);
    _lease := _closed.lease;
    if _lease.token is null then
        return query select * from postbus.settle_shelved(token, ids, 'retry', delay, error, null, max_attempts, _now);
        return;
    end if;
    _messages := _closed.messages;
    select * into _topic from postbus.topic t where t.id in (_lease.topic_id, 0) order by t.id = 0 limit 1;
    _limit := coalesce(max_attempts, _topic.max_attempts);
    _spent := array(select m from unnest(_messages) as m where m.attempts >= _limit);
    if cardinality(_spent) > 0 then
        perform postbus.bury(_lease.topic_id, _lease.ordered, _spent, format('failed %s times', _limit), error, _now);
    end if;
    perform postbus.try_later(_lease.topic_id, _lease.ordered, array(select m from unnest(_messages) as m where m.attempts < _limit),
                              _topic, retry.delay, retry.error, _now);
    return query
    select wanted.id, case when m.id is null then 'lost' when m.attempts < _limit then 'retried' else 'dead' end
      from unnest(ids) as wanted (id)
      left join unnest(_messages) as m on m.id = wanted.id;
end $$;

-- Settles deferred messages that the holder of a lane has in hand: 'done', 'retry', 'dead', or 'release', which does not count the
-- attempt. The next message of the key of each message that has ended is due at once. Returns for each message 'done', 'retried',
-- 'dead', 'released' or 'lost'.
--
-- Writes: deferred, settled_ahead, dead_letter, receipt.  Locks: the lane's row, for share.
create or replace function postbus.settle_deferred(
    subscription_id bigint,
    lane            integer,
    token           uuid,
    ids             bigint[],
    outcome         text,
    delay           interval default null,
    error           text default null,
    reason          text default null,
    max_attempts    integer default null
) returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _now     timestamptz := clock_timestamp();
    _topic   postbus.topic := postbus.subscribed_topic(subscription_id);
    _most    integer := least(max_attempts, _topic.max_attempts);
    _id      bigint;
    _one     postbus.deferred;
    _ended   text[] := array[]::text[];
    _results text[] := array[]::text[];
begin
    if delay < interval '0' or delay > interval '1000 years' then
        perform postbus.check_delay(delay);
    end if;
    perform from postbus.lane l
      where l.subscription_id = settle_deferred.subscription_id and l.lane = settle_deferred.lane and l.token = settle_deferred.token
        for share;
    if not found then
        return array(select 'lost' from unnest(ids));
    end if;
    if (outcome in ('done', 'retry', 'dead', 'release')) is not true then
        perform postbus.refuse('PB402', format('a message cannot be settled as %s', coalesce(quote_literal(postbus.in_line(outcome, 40)), 'null')),
            'use done, retry, dead or release');
    end if;
    foreach _id in array ids loop
        select * into _one from postbus.deferred r
         where r.subscription_id = settle_deferred.subscription_id and r.lane = settle_deferred.lane and r.id = _id for update;
        if _one.id is null then
            _results := _results || 'lost'::text;
        elsif outcome = 'release' then
            update postbus.deferred r set due_at = _now, attempts = greatest(r.attempts - 1, 0), alone = null
             where r.subscription_id = _one.subscription_id and r.lane = _one.lane and r.id = _id;
            _results := _results || 'released'::text;
        elsif outcome = 'retry' and _one.attempts < _most then
            update postbus.deferred r
               set due_at = _now + coalesce(settle_deferred.delay, postbus.backoff(_topic, _one.attempts)), last_error = left(error, 4000),
                   alone = null, suspected = false, outlasted = null
             where r.subscription_id = _one.subscription_id and r.lane = _one.lane and r.id = _id;
            _results := _results || 'retried'::text;
        else
            delete from postbus.deferred r
             where r.subscription_id = _one.subscription_id and r.lane = _one.lane and r.id = _id;
            if outcome = 'done' then
                _results := _results || 'done'::text;
            else
                insert into postbus.dead_letter (id, subscription_id, topic_id, died_at, reason, last_error, published_at, attempts,
                                                 priority, key, correlation_id, content_type, headers, payload, stretch)
                values (_id, postbus.group_of(_one.subscription_id), _topic.id, _now,
                        left(coalesce(reason, format('gave up after %s attempt%s', _one.attempts, case when _one.attempts > 1 then 's' end)), 1000),
                        left(error, 4000),
                        _one.published_at, _one.attempts, 4, _one.key, _one.correlation_id, _one.content_type, _one.headers, _one.payload,
                        _one.stretch)
                on conflict do nothing;
                _results := _results || 'dead'::text;
            end if;
            perform postbus.note_settled_ahead(subscription_id, lane, array[_id], array[_one.sequence]);
            perform postbus.keep_receipt(_topic, subscription_id, lane, array[_id], array[_one.sequence],
                                         array[case when outcome = 'done' then 'COMPLETED' else 'DEAD' end], array[_one.attempts],
                                         array[coalesce(error, _one.last_error)], null, array[_one.stretch], _now);
            _ended := _ended || _one.key;
        end if;
    end loop;
    perform postbus.unpark_next(subscription_id, lane, _ended, _now);
    return _results;
end $$;

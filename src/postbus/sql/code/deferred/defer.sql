-- Defers messages that a group has read from the log, so that its cursor can pass them: to be retried ('retry'), parked behind
-- another message of their key ('park'), tried at once because the attempt does not count ('release'), tried alone ('suspect'), or
-- given up ('dead'). The lane's token proves the caller's right. The caller names the messages, by ids and sequences; their
-- contents are read from the log.
--
-- Returns for each message 'retried', 'parked', 'released', 'suspected' or 'dead'; or 'gone' if the group has already passed it or
-- the log does not have it. Returns null if the lane is lost.
--
-- Writes: deferred, settled_ahead, dead_letter, receipt.  Locks: the lane's row, for share.
create or replace function postbus.defer(
    subscription_id bigint,
    lane            integer,
    token           uuid,
    kinds           text[],
    ids             bigint[],
    sequences       bigint[],
    delays          interval[],
    errors          text[],
    reasons         text[],
    max_attempts    integer default null
) returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
    _now       timestamptz := clock_timestamp();
    _topic     postbus.topic;
    _most      integer;
    _stretch   bigint;
    _results   text[];
    _parked    text[];        -- keys
    _dead      bigint[];
    _sequences bigint[];      -- of the dead ones, ...
    _reasons   text[];        -- ... and their errors, or else the reasons
begin
    perform from postbus.lane l
      where l.subscription_id = defer.subscription_id and l.lane = defer.lane and l.token = defer.token for share;
    if not found then
        return null;
    end if;
    perform postbus.check_deferral(kinds, delays);
    _topic := postbus.subscribed_topic(subscription_id);
    _most := least(max_attempts, _topic.max_attempts);
    _stretch := postbus.stretch_of(subscription_id, lane);
    with given as materialized (
        select one.n, case when one.id is null then 'gone' when one.kind = 'retry' and _most <= 1 then 'dead' else one.kind end as kind,
               one.delay, left(one.error, 4000) as error, left(one.reason, 1000) as reason, one.id, one.sequence, one.published_at, one.key,
               one.correlation_id, one.content_type, one.headers, one.payload
          from rows from (unnest(kinds, delays, errors, reasons), postbus.messages_ahead(subscription_id, lane, _topic, ids, sequences))
               with ordinality as one (kind, delay, error, reason, id, sequence, published_at, key, correlation_id, content_type, headers,
                                       payload, n)
    ), kept as (
        insert into postbus.deferred (subscription_id, lane, id, sequence, parked, due_at, attempts, suspected, last_error, published_at,
                                      key, correlation_id, content_type, headers, payload, stretch)
        select defer.subscription_id, defer.lane, g.id, g.sequence, g.kind = 'park',
               _now + coalesce(g.delay, case when g.kind in ('release', 'suspect') then interval '0' else postbus.backoff(_topic, 1) end),
               case when g.kind = 'retry' then 1 else 0 end, g.kind = 'suspect', g.error,
               g.published_at, g.key, g.correlation_id, g.content_type, g.headers, g.payload, _stretch
          from given g where g.kind not in ('dead', 'gone')
        on conflict on constraint deferred_pkey do nothing
    ), given_up as (
        insert into postbus.dead_letter (id, subscription_id, topic_id, died_at, reason, last_error, published_at, attempts, priority, key,
                                         correlation_id, content_type, headers, payload, stretch)
        select g.id, postbus.group_of(defer.subscription_id), _topic.id, _now, coalesce(g.reason, 'gave up after 1 attempt'), g.error,
               g.published_at, 1, 4, g.key, g.correlation_id, g.content_type, g.headers, g.payload, _stretch
          from given g where g.kind = 'dead'
        on conflict do nothing
    )
    select array_agg(case g.kind when 'retry' then 'retried' when 'park' then 'parked' when 'release' then 'released'
                                 when 'suspect' then 'suspected' else g.kind end order by g.n),
           array_agg(distinct g.key) filter (where g.kind = 'park'), array_agg(g.id order by g.n) filter (where g.kind = 'dead'),
           array_agg(g.sequence order by g.n) filter (where g.kind = 'dead'),
           array_agg(coalesce(g.error, g.reason) order by g.n) filter (where g.kind = 'dead')
      into _results, _parked, _dead, _sequences, _reasons
      from given g;
    if _dead is not null then
        perform postbus.note_settled_ahead(subscription_id, lane, _dead, _sequences);
        perform postbus.keep_receipt(_topic, subscription_id, lane, _dead, _sequences, array_fill('DEAD'::text, array[cardinality(_dead)]),
                                     array_fill(1, array[cardinality(_dead)]), _reasons, null, array_fill(_stretch, array[cardinality(_dead)]),
                                     _now);
    end if;
    -- The messages that they were to wait behind may have ended since.
    if _parked is not null then
        perform postbus.unpark_next(subscription_id, lane, _parked, _now);
    end if;
    return coalesce(_results, array[]::text[]);
end $$;

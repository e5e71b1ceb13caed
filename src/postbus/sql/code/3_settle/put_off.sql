-- Takes messages that a group read from the log out of its way: to be tried again ('retry'), to wait behind
-- another one of their key ('park'), to be tried at once, since they were not ('release'), to be tried alone ('suspect'), or given up
-- ('dead').
-- Returns what became of each: 'retried', 'parked' or 'dead'; nothing at all if the lane is lost.
--
-- Writes: retrying, settled_ahead, dead_letter, receipt.  Locks: the lane's row, for share.
create or replace function postbus.put_off(
    subscription_id bigint,
    lane            integer,
    token           uuid,
    kinds           text[],
    ids             bigint[],
    positions       bigint[],
    published_ats   timestamptz[],
    keys            text[],
    correlation_ids text[],
    content_types   text[],
    headers         text[],
    payloads        bytea[],
    delays          interval[],
    errors          text[],
    reasons         text[],
    max_attempts    integer default null
) returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _now   timestamptz := clock_timestamp();
    _topic postbus.topic := postbus.subscribed_topic(subscription_id);
    _most  integer := least(max_attempts, _topic.max_attempts);
    _stretch bigint := postbus.stretch_of(subscription_id, lane);
begin
    if interval '0' > any (delays) or interval '1000 years' < any (delays) then
        perform postbus.check_delay(one.delay) from unnest(delays) as one (delay);
    end if;
    perform from postbus.lane l
      where l.subscription_id = put_off.subscription_id and l.lane = put_off.lane and l.token = put_off.token for share;
    if not found then
        return null;
    end if;
    kinds := array(select case when one.kind = 'retry' and _most <= 1 then 'dead' else one.kind end
                     from unnest(kinds) with ordinality as one (kind, n) order by one.n);
    insert into postbus.retrying as known (subscription_id, lane, id, position, parked, due_at, attempts, suspected, last_error, published_at,
                                  key, correlation_id, content_type, headers, payload, stretch)
    select put_off.subscription_id, put_off.lane, one.id, one.position, one.kind = 'park',
           _now + coalesce(one.delay, case when one.kind in ('release', 'suspect') then interval '0' else postbus.backoff(_topic, 1) end),
           case when one.kind = 'retry' then 1 else 0 end, one.kind = 'suspect', left(one.error, 4000),
           one.published_at, one.key, one.correlation_id, one.content_type, one.headers::jsonb, one.payload, _stretch
      from unnest(kinds, ids, positions, published_ats, keys, correlation_ids, content_types, put_off.headers, payloads, delays, errors)
           as one (kind, id, position, published_at, key, correlation_id, content_type, headers, payload, delay, error)
     where one.kind <> 'dead'
    on conflict on constraint retrying_pkey do nothing;
    insert into postbus.dead_letter (id, subscription_id, topic_id, died_at, reason, last_error, published_at, attempts, priority, key,
                                     correlation_id, content_type, headers, payload, stretch)
    select one.id, postbus.group_of(put_off.subscription_id), _topic.id, _now,
           left(coalesce(one.reason, 'gave up after 1 attempt'), 1000),
           left(one.error, 4000), one.published_at, 1, 4, one.key, one.correlation_id, one.content_type, one.headers::jsonb, one.payload,
           _stretch
      from unnest(kinds, ids, published_ats, keys, correlation_ids, content_types, put_off.headers, payloads, errors, reasons)
           as one (kind, id, published_at, key, correlation_id, content_type, headers, payload, error, reason)
     where one.kind = 'dead'
    on conflict do nothing;
    perform postbus.note_ahead(subscription_id, lane, array_agg(one.id), array_agg(one.position))
       from unnest(kinds, ids, positions) as one (kind, id, position) where one.kind = 'dead' having count(*) > 0;
    perform postbus.keep_receipt(_topic, subscription_id, lane, array_agg(one.id), array_agg(one.position), array_agg('DEAD'::text),
                                 array_agg(1), array_agg(coalesce(one.error, one.reason)), null, array_agg(_stretch), _now)
       from unnest(kinds, ids, positions, errors, reasons) as one (kind, id, position, error, reason)
      where one.kind = 'dead' having count(*) > 0;
    -- What they were to wait behind may have ended since.
    perform postbus.unpark_retrying(subscription_id, lane, array(
        select distinct one.key from unnest(kinds, keys) as one (kind, key) where one.kind = 'park'), _now);
    return array(select case one.kind when 'retry' then 'retried' when 'park' then 'parked' when 'release' then 'released'
                                         when 'suspect' then 'suspected' else 'dead' end
                   from unnest(kinds) with ordinality as one (kind, n) order by one.n);
end $$;

-- Gives a group imported messages that are not ahead of it in the log, with the attempts that they had. They are due now, one after
-- the other if they have a key. Messages that were tried as often as the topic allows become dead letters of the group. Returns the
-- number of these dead letters.
--
-- Writes: deferred, dead_letter, receipt; see note_action.
-- Locks: the group's lane rows, so that a message which ends just now does not leave another one parked.
create or replace function postbus.import_deferred(
    source          text,
    topic           text,
    group_name      text,
    source_ids      text[],
    payloads        bytea[],
    content_type    text,
    keys            text[],
    headers         jsonb[],
    correlation_ids text[],
    published_ats   timestamptz[],
    attempts        integer[],
    errors          text[]
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
declare
    _topic postbus.topic := postbus.existing_topic(topic);
    _group bigint := (postbus.existing_subscription(topic, group_name)).id;
    _epoch bigint := postbus.epoch(_topic.storage_id);
    _dead  integer[];
    _ids   bigint[];        -- those of the dead ones
    _line  record;
begin
    if not postbus.is_content_type(content_type) then
        perform postbus.refuse_content_type(content_type);
    end if;
    headers := array(select postbus.import_headers(source, given.id, given.headers, given.at)
                       from unnest(source_ids, import_deferred.headers, published_ats) with ordinality as given (id, headers, at, n) order by n);
    select coalesce(array_agg(given.n order by given.n), '{}'), array_agg(i.message_id order by given.n) into _dead, _ids
      from unnest(source_ids, attempts) with ordinality as given (id, attempts, n)
      join postbus.imported i on i.source = import_deferred.source and i.source_id = given.id and i.message_id is not null
     where given.attempts >= _topic.max_attempts;
    perform from postbus.lane l where l.subscription_id = _group order by l.lane for update;
    insert into postbus.deferred (subscription_id, lane, id, sequence, parked, attempts, last_error, kept_from, published_at, key,
                                  correlation_id, content_type, headers, payload)
    select _group, coalesce(postbus.lane_of(one.key, _topic.lanes), ((i.message_id >> 10) % _topic.lanes)::integer), i.message_id,
           (_epoch << 43) + (i.message_id >> 10), one.key is not null, coalesce(one.attempts, 0), left(one.error, 4000),
           clock_timestamp(), coalesce(one.published_at, clock_timestamp()), one.key, one.correlation_id, import_deferred.content_type,
           one.headers, one.payload
      from unnest(source_ids, payloads, keys, import_deferred.headers, correlation_ids, published_ats, import_deferred.attempts, errors)
           as one (source_id, payload, key, headers, correlation_id, published_at, attempts, error)
      join postbus.imported i on i.source = import_deferred.source and i.source_id = one.source_id and i.message_id is not null
     where (one.attempts >= _topic.max_attempts) is not true
    on conflict on constraint deferred_pkey do nothing;
    perform postbus.import_dead(
        _topic, _group, _ids, array(select payloads[n] from unnest(_dead) as n), content_type, array(select keys[n] from unnest(_dead) as n),
        array(select headers[n] from unnest(_dead) as n), array(select correlation_ids[n] from unnest(_dead) as n),
        array(select published_ats[n] from unnest(_dead) as n), array(select attempts[n] from unnest(_dead) as n),
        array(select errors[n] from unnest(_dead) as n));
    for _line in
        select postbus.lane_of(one.key, _topic.lanes) as lane, array_agg(distinct one.key) as keys
          from unnest(keys) as one (key) where one.key is not null group by 1
    loop
        perform postbus.unpark_next(_group, _line.lane, _line.keys, clock_timestamp());
    end loop;
    perform pg_notify('postbus', _topic.id::text);
    perform postbus.note_action('import.deferred', topic, group_name, source, cardinality(source_ids));
    return cardinality(_dead);
end $$;

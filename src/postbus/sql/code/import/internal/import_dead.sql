-- Makes dead letters of imported messages that were tried as often as the topic allows: of a group, or of none (0).
--
-- Writes: dead_letter, receipt.
create or replace function postbus.import_dead(
    topic           postbus.topic,
    subscription_id bigint,
    ids             bigint[],
    payloads        bytea[],
    content_type    text,
    keys            text[],
    headers         jsonb[],
    correlation_ids text[],
    published_ats   timestamptz[],
    attempts        integer[],
    errors          text[]
) returns void
language plpgsql as $$
declare
    _reason text := 'its attempts were used up before it was imported';
begin
    insert into postbus.dead_letter (id, subscription_id, topic_id, reason, last_error, published_at, attempts, priority, key, correlation_id,
                                     content_type, headers, payload)
    select one.id, import_dead.subscription_id, topic.id, _reason, left(one.error, 4000), coalesce(one.published_at, clock_timestamp()),
           one.attempts, 4, one.key, one.correlation_id, import_dead.content_type, one.headers, one.payload
      from unnest(ids, payloads, keys, import_dead.headers, correlation_ids, published_ats, import_dead.attempts, errors)
           as one (id, payload, key, headers, correlation_id, published_at, attempts, error)
    on conflict do nothing;
    if subscription_id <> 0 then        -- receipts are of messages in the log
        perform postbus.keep_receipt(topic, subscription_id, dead.lane, array_agg(dead.id), array_agg(dead.sequence),
                                     array_agg('DEAD'::text), array_agg(dead.attempts), array_agg(coalesce(dead.error, _reason)),
                                     null, array_agg(null::bigint), clock_timestamp())
           from (select one.id, one.attempts, one.error, postbus.sequence_of(topic, one.id) as sequence,
                        coalesce(postbus.lane_of(one.key, topic.lanes), ((one.id >> 10) % topic.lanes)::integer) as lane
                   from unnest(ids, keys, import_dead.attempts, errors) as one (id, key, attempts, error)) as dead
          where dead.sequence is not null group by dead.lane;
    end if;
end $$;

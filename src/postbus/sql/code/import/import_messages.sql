-- Imports messages of another outbox into a topic, in the given order, and marks them in the same transaction. Messages that are
-- marked already are left out. Returns the others, each with its new id, or with the problem because of which it was not imported.
-- Such a message is not marked, so the next import tries it again.
--
-- Messages keep their event id (see import_headers) and the time of publication; in a QUEUE, also the number of attempts. Messages
-- that were tried as often as the topic allows become dead letters, with their error; in a PUB_SUB topic these belong to no group,
-- and a redrive names the group that gets them. With to_log false, messages of a PUB_SUB topic only get an id, because some groups
-- must not get them: see import_deferred.
--
-- Writes: imported; queued or segment; dead_letter; see note_action.
create or replace function postbus.import_messages(
    source          text,
    topic           text,
    source_ids      text[],
    payloads        bytea[],
    content_type    text,
    keys            text[],
    headers         jsonb[],
    correlation_ids text[],
    published_ats   timestamptz[],
    attempts        integer[],
    errors          text[],
    to_log          boolean default true
) returns table (source_id text, message_id bigint, problem text, is_dead boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic    postbus.topic := postbus.existing_topic(topic);
    _indexes  integer[];
    _dead     integer[];
    _ids      bigint[];
    _dead_ids bigint[];
    _times    timestamptz[] := array(select coalesce(given.at, clock_timestamp())
                                       from unnest(published_ats) with ordinality as given (at, n) order by n);
begin
    if not postbus.is_content_type(content_type) then
        perform postbus.refuse_content_type(content_type);
    end if;
    _topic.block_writes_on_zero_subscriptions := false;     -- its groups are imported as well
    _indexes := array(
        select given.n
          from unnest(source_ids, payloads, keys, headers, correlation_ids) with ordinality as given (id, payload, key, headers, correlation_id, n)
         where postbus.import_problem(_topic, given.payload, given.key, given.headers, given.correlation_id) is null
           and not exists (select from postbus.imported i
                            where i.source = import_messages.source and i.source_id = given.id and i.message_id is not null)
         order by given.n);
    headers := array(select case when given.n = any (_indexes) then postbus.import_headers(source, given.id, given.headers, given.at)
                                 else given.headers end
                       from unnest(source_ids, import_messages.headers, published_ats) with ordinality as given (id, headers, at, n) order by n);
    if _indexes <> '{}' then
        _dead := case when to_log then array(select n from unnest(_indexes) as n where attempts[n] >= _topic.max_attempts) else '{}' end;
        _indexes := array(select n from unnest(_indexes) as n where n <> all (_dead));
        if _topic.storage_id is null then
            _ids := postbus.new_ids(cardinality(_indexes));
            insert into postbus.queued (topic_id, id, published_at, attempts, priority, ordered, key, correlation_id, content_type,
                                        headers, payload)
            select _topic.id, one.id, _times[one.n], coalesce(attempts[one.n], 0), 4, _topic.ordered,
                   keys[one.n], correlation_ids[one.n], import_messages.content_type, headers[one.n], payloads[one.n]
              from unnest(_ids, _indexes) as one (id, n) order by one.id;
        elsif to_log then
            _ids := postbus.import_append(
                _topic, array(select _times[n] from unnest(_indexes) as n), import_messages.content_type,
                array(select payloads[n] from unnest(_indexes) as n), array(select keys[n] from unnest(_indexes) as n),
                array(select headers[n] from unnest(_indexes) as n), array(select correlation_ids[n] from unnest(_indexes) as n));
        else
            _ids := array(select nextval('postbus.segment_number') * 1024 from unnest(_indexes));
        end if;
        _dead_ids := case when _topic.storage_id is null then postbus.new_ids(cardinality(_dead))
                        else array(select nextval('postbus.segment_number') * 1024 from unnest(_dead)) end;
        perform postbus.import_dead(
            _topic, 0, _dead_ids, array(select payloads[n] from unnest(_dead) as n), content_type, array(select keys[n] from unnest(_dead) as n),
            array(select headers[n] from unnest(_dead) as n), array(select correlation_ids[n] from unnest(_dead) as n),
            array(select _times[n] from unnest(_dead) as n), array(select attempts[n] from unnest(_dead) as n),
            array(select errors[n] from unnest(_dead) as n));
        insert into postbus.imported as known (source, source_id, message_id)
        select import_messages.source, source_ids[one.n], one.id from unnest(_ids || _dead_ids, _indexes || _dead) as one (id, n)
        on conflict on constraint imported_pkey do update set message_id = excluded.message_id where known.message_id is null;
        perform pg_notify('postbus', _topic.id::text);
        perform postbus.note_action('import.messages', topic, target => source, affected => cardinality(_indexes) + cardinality(_dead));
    end if;
    return query
        select source_ids[one.n], one.id, null, one.n = any (_dead) from unnest(_ids || _dead_ids, _indexes || _dead) as one (id, n)
        union all
        select given.id, null, found.problem, false
          from unnest(source_ids, payloads, keys, headers, correlation_ids) as given (id, payload, key, headers, correlation_id)
         cross join lateral postbus.import_problem(_topic, given.payload, given.key, given.headers, given.correlation_id) as found (problem)
         where found.problem is not null;
end $$;

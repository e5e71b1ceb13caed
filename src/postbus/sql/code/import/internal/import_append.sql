-- Appends imported messages to the log, in the given order, and returns their ids. All messages of a segment have the same time,
-- but imported ones each have their own. So consecutive messages of a lane share a segment if they have the same time.
--
-- Writes: see append_segment.
create or replace function postbus.import_append(
    topic           postbus.topic,
    published_ats   timestamptz[],
    content_type    text,
    payloads        bytea[],
    keys            text[],
    headers         jsonb[],
    correlation_ids text[]
) returns bigint[]
language plpgsql as $$
declare
    _ids    bigint[] := array_fill(null::bigint, array[coalesce(cardinality(payloads), 0)]);
    _run    record;
    _number bigint;
    _some   bigint[];
begin
    for _run in
        with placed as (
            select given.*, case when given.key is not null then postbus.lane_of(given.key, topic.lanes) end as lane
              from unnest(published_ats, payloads, keys, import_append.headers, correlation_ids)
                   with ordinality as given (published_at, payload, key, headers, correlation_id, n)
        ), compared as (
            select placed.*, placed.published_at is distinct from lag(placed.published_at) over (partition by placed.lane order by placed.n) as begins
              from placed
        ), numbered as (
            select compared.*, count(*) filter (where compared.begins) over (partition by compared.lane order by compared.n) as run
              from compared
        )
        select o.lane, o.published_at, array_agg(o.n order by o.n) as positions, array_agg(o.payload order by o.n) as payloads,
               case when o.lane is not null then array_agg(o.key order by o.n) end as keys,
               case when count(o.headers) > 0 then array_agg(o.headers order by o.n) end as headers,
               case when count(o.correlation_id) > 0 then array_agg(o.correlation_id order by o.n) end as correlation_ids
          from numbered o group by o.lane, o.run, o.published_at order by min(o.n)
    loop
        if cardinality(_run.positions) = 1 then
            _number := postbus.append_segment(topic.storage_id, topic.id, topic.lanes, _run.lane, _run.published_at, content_type, null, _run.keys,
                                              _run.correlation_ids, _run.headers, _run.payloads, length(_run.payloads[1]));
            _some := array[_number * 1024];
        else
            _some := postbus.append_many(topic, _run.published_at, content_type, _run.payloads, _run.keys, _run.headers, _run.correlation_ids, null);
        end if;
        for _i in 1 .. cardinality(_some) loop
            _ids[_run.positions[_i]] := _some[_i];
        end loop;
    end loop;
    return _ids;
end $$;

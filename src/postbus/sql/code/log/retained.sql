-- The retained messages of a PUB_SUB topic, done or not, in the order of the log; the finished messages of a QUEUE, in the order of
-- their ids. Filters are a time, an event type and an aggregate, as the headers say. Begins after a sequence and an index in its
-- segment.
create or replace function postbus.retained(
    topic          text,
    since          timestamptz default null,
    until          timestamptz default null,
    event_type     text default null,
    aggregate_type text default null,
    aggregate_id   text default null,
    after_sequence bigint default 0,
    after_index    integer default -1,
    max_count      integer default 1000,
    out at_sequence    bigint,
    out at_index       integer,
    out id             bigint,
    out published_at   timestamptz,
    out key            text,
    out correlation_id text,
    out content_type   text,
    out headers        text,
    out payload        bytea
) returns setof record
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic  postbus.topic := postbus.existing_topic(topic);
    _wanted jsonb := jsonb_strip_nulls(jsonb_build_object('event-type', event_type, 'aggregate-type', aggregate_type,
                                                          'aggregate-id', aggregate_id));
begin
    if _topic.storage_id is null then
        return query
        select m.id, 0, m.id, m.published_at, m.key, m.correlation_id, m.content_type, m.headers::text, m.payload
          from postbus.finished f cross join unnest(f.messages) as m
         where f.topic_id = _topic.id and m.id > after_sequence
           and (since is null or m.published_at >= since) and (until is null or m.published_at < until)
           and coalesce(m.headers, '{}') @> _wanted
         order by m.id limit max_count;
        return;
    end if;
    return query
    select s.sequence, (message.n - 1)::integer, postbus.first_id(s.sequence) + message.n - 1, s.published_at, s.keys[message.n],
           s.correlation_ids[message.n], coalesce(s.content_types[message.n], s.content_type), s.headers[message.n]::text, message.payload
      from postbus.segment s cross join lateral unnest(postbus.payloads_of(s.payloads, s.count, s.in_lines)) with ordinality as message (payload, n)
     where s.storage_id = _topic.storage_id and s.topic_id = _topic.id and s.sequence >= after_sequence
       and (s.sequence > after_sequence or message.n - 1 > after_index)
       and (since is null or s.published_at >= since) and (until is null or s.published_at < until)
       and coalesce(s.headers[message.n], '{}') @> _wanted
     order by s.sequence, message.n limit max_count;
end $$;

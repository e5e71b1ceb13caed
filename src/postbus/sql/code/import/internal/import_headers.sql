-- The headers that a message of another outbox gets here: those it had, and its identity, by which all groups and all who read it
-- later know it. A row that says of itself what it is keeps that; another one gets an identity that follows from its table,
-- its id and its time.
create or replace function postbus.import_headers(source text, source_id text, headers jsonb, published_at timestamptz) returns jsonb
language sql stable as $$
    select coalesce(headers, '{}') || jsonb_build_object(
        'event-id', postbus.event_id(source || ':' || source_id, 0, coalesce(published_at, 'epoch'), headers))
$$;

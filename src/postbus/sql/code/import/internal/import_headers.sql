-- The headers that an imported message gets: its own, and its event id, by which all groups and later readers know it. A row that
-- has an event id keeps it; otherwise it follows from the table, the row's id and its time.
create or replace function postbus.import_headers(source text, source_id text, headers jsonb, published_at timestamptz) returns jsonb
language sql stable as $$
    select coalesce(headers, '{}') || jsonb_build_object(
        'event-id', postbus.event_id(source || ':' || source_id, 0, coalesce(published_at, 'epoch'), headers))
$$;

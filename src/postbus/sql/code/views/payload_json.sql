-- A payload as jsonb if it is JSON that jsonb can hold, otherwise null.
create or replace function postbus.payload_json(payload bytea, content_type text) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp as $$
begin
    if content_type like 'application/json%' or content_type like '%+json' then
        return convert_from(payload, 'UTF8')::jsonb;
    end if;
    return null;
exception when data_exception or program_limit_exceeded then
    return null;        -- NUL characters, lone surrogates, numbers beyond numeric
end $$;

-- A payload as text where it is UTF-8, else as hexadecimal digits.
create or replace function postbus.payload_text(payload bytea) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp as $$
begin
    return convert_from(payload, 'UTF8');
exception when data_exception then
    return encode(payload, 'hex');
end $$;

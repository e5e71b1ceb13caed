-- Leases up to max_count due messages of a topic to one member: see claim_as_of. A single expression returns the result, which is
-- the fastest way.
--
-- Writes: see claim_as_of.
create or replace function postbus.claim(
    topic         text,
    member        text,
    max_count     integer,
    lease         interval default null,
    scan_floor    text default null,
    max_bytes     bigint default 16777216,
    with_suspects boolean default true
) returns postbus.claimed
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return postbus.claim_as_of(topic, member, max_count, lease, scan_floor, max_bytes, clock_timestamp(), with_suspects);
end $$;

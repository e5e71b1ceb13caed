-- Claims due deferred messages of lanes for the lanes' holder: see claim_deferred_as_of.
--
-- Writes: see claim_deferred_as_of.
create or replace function postbus.claim_deferred(
    tokens    uuid[],
    max_count integer,
    is_alone  boolean default false
) returns setof postbus.deferred
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return query select * from postbus.claim_deferred_as_of(tokens, max_count, clock_timestamp(), is_alone);
end $$;

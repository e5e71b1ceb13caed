-- Takes messages of lanes that are due to be tried again by their group, now: see claim_retrying_as_of.
--
-- Writes: see claim_retrying_as_of.
create or replace function postbus.claim_retrying(
    tokens    uuid[],
    max_count integer,
    is_alone  boolean default false
) returns setof postbus.retrying
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return query select * from postbus.claim_retrying_as_of(tokens, max_count, clock_timestamp(), is_alone);
end $$;

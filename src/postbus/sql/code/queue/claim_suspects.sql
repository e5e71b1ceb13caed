-- Leases suspects of a queue, apart from all other messages: see claim_suspects_as_of.
--
-- Writes: see claim_suspects_as_of.
create or replace function postbus.claim_suspects(
    topic       text,
    member      text,
    max_count   integer default 1000,
    lease       interval default null,
    is_promised boolean default false
) returns postbus.claimed_suspects
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return postbus.claim_suspects_as_of(topic, member, max_count, lease, is_promised, clock_timestamp());
end $$;

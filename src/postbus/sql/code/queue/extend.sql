-- Extends leases: each ends `lease` from now. Returns the tokens of leases that are lost.
--
-- Writes: lease, deferred; see note_signs_of_life.  Locks: lease rows in the order of their tokens.
create or replace function postbus.extend(
    tokens uuid[],
    lease  interval
) returns uuid[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _now   timestamptz := clock_timestamp();
    _found uuid[];
begin
    if lease is null then
        perform postbus.refuse('PB402', 'the lease is null', 'give a lease longer than the work takes');
    elsif lease <= interval '0' or lease > interval '1000 years' then
        perform postbus.check_lease(lease);
    end if;
    _found := array(select l.token from postbus.lease l where l.token = any (tokens) order by l.token for update);
    update postbus.lease l set ends_at = _now + extend.lease where l.token = any (_found);
    if cardinality(_found) < cardinality(tokens) then        -- leases of groups, in the order of sequences, as settlements lock them
        perform postbus.note_signs_of_life(tokens, _now, at_once => true);
        perform from postbus.deferred r where r.token = any (tokens) order by r.sequence, r.id for update;
        with extended as (
            update postbus.deferred r set due_at = _now + extend.lease where r.token = any (tokens) returning r.token
        )
        select _found || coalesce(array_agg(distinct e.token), '{}') into _found from extended e;
    end if;
    return array(select wanted.token from unnest(tokens) as wanted (token) where wanted.token <> all (_found));
end $$;

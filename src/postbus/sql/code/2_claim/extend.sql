-- Prolongs leases to `lease` from now. Returns the tokens of those that are lost.
--
-- Writes: lease, retrying; see note_holders.  Locks: lease rows in the order of their tokens.
create or replace function postbus.extend(
    tokens uuid[],
    lease  interval,
    as_of  timestamptz default clock_timestamp()
) returns uuid[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _held uuid[];
begin
    if lease is null or lease <= interval '0' then
        perform postbus.refuse('PB402', format('lease %s is not positive', lease), 'give a lease longer than the work takes');
    end if;
    _held := array(select l.token from postbus.lease l where l.token = any (tokens) order by l.token for update);
    update postbus.lease l set ends_at = as_of + extend.lease where l.token = any (_held);
    if cardinality(_held) < cardinality(tokens) then        -- those of groups, in the order of positions, as all who settle
        perform postbus.note_holders(tokens, as_of, at_once => true);
        perform from postbus.retrying r where r.token = any (tokens) order by r.position, r.id for update;
        with extended as (
            update postbus.retrying r set due_at = as_of + extend.lease where r.token = any (tokens) returning r.token
        )
        select _held || coalesce(array_agg(distinct e.token), '{}') into _held from extended e;
    end if;
    return array(select wanted.token from unnest(tokens) as wanted (token) where wanted.token <> all (_held));
end $$;

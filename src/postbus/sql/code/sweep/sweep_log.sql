-- Maintains one log storage, a step at a time: see sweep_log_as_of.
--
-- Writes: see sweep_log_as_of.
create or replace function postbus.sweep_log(
    storage_id integer,
    if_due     boolean default false,
    out counted bigint,
    out opened  integer,
    out dropped text[],
    out folded  bigint,
    out dead    bigint,
    out more    boolean,
    out thinned bigint
)
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select * from postbus.sweep_log_as_of(storage_id, clock_timestamp(), if_due)
$$;

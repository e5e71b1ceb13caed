-- Removes what is no longer needed: see sweep_as_of.
--
-- Writes: see sweep_as_of.
create or replace function postbus.sweep(
    max_count integer default null,
    if_due    boolean default false,
    out finished_rows bigint,
    out dedup_keys    bigint,
    out inbox_records bigint,
    out workers       bigint,
    out more          boolean
)
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select * from postbus.sweep_as_of(max_count, clock_timestamp(), if_due)
$$;

-- Moves the live groups of a topic, or one of them, past all messages that were published longer ago than older_than: see
-- force_complete_as_of.
--
-- Writes: see force_complete_as_of.
create or replace function postbus.force_complete(
    topic      text,
    older_than interval,
    group_name text default null,
    dry_run    boolean default false
) returns table (name text, messages bigint)
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select * from postbus.force_complete_as_of(topic, older_than, group_name, dry_run, clock_timestamp())
$$;

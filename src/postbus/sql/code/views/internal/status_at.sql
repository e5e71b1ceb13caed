-- The status of a message at a group: see the type delivery_status. is_done to is_dead_ahead follow from the group's stretches; the
-- others are facts about the message alone, or null.
create or replace function postbus.status_at(
    is_done       boolean,
    is_before     boolean,
    is_ahead      boolean,
    is_dead_ahead boolean,
    is_completed  boolean,
    waits         text,
    is_letter     boolean,
    is_dead       boolean,
    is_abandoned  boolean
) returns text
language sql immutable as $$
    select case when is_done or is_completed or is_ahead and waits is null and (is_dead or not is_letter) then 'COMPLETED'
                when waits is not null then waits
                when is_letter or is_dead and (not is_before or is_dead_ahead) then 'DEAD'
                when is_before then 'PENDING'
                when is_abandoned then 'ABANDONED'
                else 'SKIPPED' end
$$;

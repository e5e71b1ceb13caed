-- The states of messages, by their statuses at all groups: COMPLETED once all groups that were required for them had settled them,
-- and for good; FAILED if all these have settled them or given them up, and one has given up; PENDING until one of these has tried;
-- otherwise PROCESSING. wanted: some group is, or was, required for the messages, or has settled them.
create or replace function postbus.states(topic_id bigint, segments postbus.segment_ref[], facts postbus.message_fact[]) returns table (
    sequence    bigint,
    first_index integer,
    last_index  integer,
    required    text[],
    completed   text[],
    status      text,
    wanted      boolean
)
language plpgsql stable
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    return query
        select f.sequence, f.first_index, f.last_index,
               coalesce(array_agg(f.group_name order by f.group_name) filter (where f.required), '{}'),
               coalesce(array_agg(f.group_name order by f.group_name) filter (where f.status = 'COMPLETED'), '{}'),
               case when bool_or(f.is_completed) then 'COMPLETED'
                    when not bool_or(f.required and f.status <> 'PENDING') then 'PENDING'
                    when bool_and(f.status in ('COMPLETED', 'DEAD') or not f.required) then 'FAILED'
                    else 'PROCESSING' end,
               bool_or(f.required or f.was_wanted)
          from postbus.delivery_statuses(topic_id, segments, facts) as f
         group by f.sequence, f.first_index, f.last_index;
end $$;

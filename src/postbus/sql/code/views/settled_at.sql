-- When a message was settled by the last of the groups that were required for it. Null while it is PENDING or PROCESSING, and
-- without receipts.
create or replace function postbus.settled_at(
    topic_id  bigint,
    segment   postbus.segment_ref,
    index     integer,
    required  text[],
    completed text[],
    status    text
)
returns timestamptz
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select max(d.settled_at)
      from postbus.topic t
     cross join unnest(required) as by_group (name)
     cross join lateral postbus.delivery(t, segment, index, by_group.name,
                                         case when by_group.name = any (completed) then 'COMPLETED' else 'DEAD' end, false) as d
     where t.id = settled_at.topic_id and t.tracking = 'REFERENCE_COUNTING' and settled_at.status in ('COMPLETED', 'FAILED')
$$;

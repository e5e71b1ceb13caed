-- The groups that a message is required for, those that are done with it, and what that makes of it: PENDING until
-- a group has dealt with it, PROCESSING until all have, then COMPLETED, or FAILED where one has given up.
-- A message that is required for nobody is PENDING.
create or replace function postbus.state_of(
    topic_id       bigint,
    id             bigint,
    lane           integer,
    "position"     bigint,
    txid           xid8,
    index          integer,
    count          integer,
    published_at   timestamptz,
    out required   text[],
    out completed  text[],
    out status     text,
    out settled_at timestamptz
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select coalesce(to_groups.required, '{}'), coalesce(to_groups.completed, '{}'),
           case when to_groups.required is null or (to_groups.settled = 0 and to_groups.begun = 0) then 'PENDING'
                when to_groups.settled < cardinality(to_groups.required) then 'PROCESSING'
                when coalesce(cardinality(to_groups.completed), 0) < cardinality(to_groups.required) then 'FAILED'
                else 'COMPLETED' end,
           case when to_groups.settled = cardinality(to_groups.required) then to_groups.settled_at end
      from (select array_agg(d.group_name order by d.group_name) as required,
                   array_agg(d.group_name order by d.group_name) filter (where d.status = 'COMPLETED') as completed,
                   count(*) filter (where d.status in ('COMPLETED', 'DEAD')) as settled,
                   count(*) filter (where d.status in ('RETRYING', 'WAITING')) as begun,
                   max(d.settled_at) as settled_at
              from postbus.delivery(topic_id, id, lane, position, txid, index, count, published_at) as d
             where d.required) as to_groups
$$;

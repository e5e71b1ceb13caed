-- The groups that messages of one segment are required for, those that are done with them, and what that makes of them:
-- PENDING until a group has dealt with it, PROCESSING until all have, then COMPLETED, or FAILED where one has given up.
-- A message that is required for nobody is PENDING. One row for those that follow each other and share their fate.
create or replace function postbus.state_of(
    topic_id     bigint,
    lane         integer,
    "position"   bigint,
    txid         xid8,
    count        integer,
    published_at timestamptz,
    from_index   integer,
    to_index     integer
) returns table (
    first_index integer,
    last_index  integer,
    required    text[],
    completed   text[],
    status      text,
    settled_at  timestamptz
)
language sql stable security definer rows 3
set search_path = pg_catalog, pg_temp as $$
    with told as materialized (
        select d.* from postbus.delivery(topic_id, lane, position, txid, count, published_at, from_index, to_index) as d where d.required
    ), begins as (
        select from_index as index union select t.first_index from told t union select t.last_index + 1 from told t
    ), run as (
        select b.index as first_index, lead(b.index, 1, to_index + 1) over (order by b.index) - 1 as last_index
          from begins b where b.index <= to_index
    )
    select run.first_index, run.last_index, coalesce(to_groups.required, '{}'), coalesce(to_groups.completed, '{}'),
           case when to_groups.required is null or (to_groups.settled = 0 and to_groups.begun = 0) then 'PENDING'
                when to_groups.settled < cardinality(to_groups.required) then 'PROCESSING'
                when coalesce(cardinality(to_groups.completed), 0) < cardinality(to_groups.required) then 'FAILED'
                else 'COMPLETED' end,
           case when to_groups.settled = cardinality(to_groups.required) then to_groups.settled_at end
      from run
     cross join lateral (select array_agg(t.group_name order by t.group_name) as required,
                                array_agg(t.group_name order by t.group_name) filter (where t.status = 'COMPLETED') as completed,
                                count(*) filter (where t.status in ('COMPLETED', 'DEAD')) as settled,
                                count(*) filter (where t.status in ('RETRYING', 'WAITING')) as begun,
                                max(t.settled_at) as settled_at
                           from told t where run.first_index between t.first_index and t.last_index) as to_groups
$$;

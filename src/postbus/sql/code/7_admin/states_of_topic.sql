-- What all messages of a topic are: see states. Messages of a topic that never had a group are PENDING, and for nobody.
create or replace function postbus.states_of_topic(topic_id bigint) returns table (
    "position"  bigint,
    first_index integer,
    last_index  integer,
    required    text[],
    completed   text[],
    status      text,
    wanted      boolean
)
language sql stable security definer rows 100000
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB' as $$
    with topic as materialized (
        select t, postbus.oddities(t) as odd from postbus.topic t where t.id = states_of_topic.topic_id and t.storage_id is not null
    ), segment as materialized (
        select s.* from topic
         cross join lateral postbus.alike((topic.t)::postbus.topic, array(select o.id >> 10 from unnest(topic.odd) as o)) as s
    ), told as (
        select f.* from topic
         cross join lateral postbus.states(
            (topic.t).id, array(select row(s.position, s.lane, s.txid, s.count, s.published_at)::postbus.looked_at
                                  from segment s where s.position = s.model), topic.odd) as f
    )
    select s.position, coalesce(t.first_index, 0), case when s.position = s.model then coalesce(t.last_index, s.count - 1) else s.count - 1 end,
           coalesce(t.required, '{}'), coalesce(t.completed, '{}'), coalesce(t.status, 'PENDING'), coalesce(t.wanted, false)
      from segment s left join told t on t.position = s.model
$$;

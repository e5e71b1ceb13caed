-- What became of all messages of a topic at each of its groups: see fates.
create or replace function postbus.fates_of_topic(topic_id bigint) returns table (
    "position"      bigint,
    first_index     integer,
    last_index      integer,
    group_name      text,
    subscription_id bigint,
    status          text,
    required        boolean,
    is_before       boolean,
    waits           boolean
)
language sql stable security definer rows 100000
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB' as $$
    with topic as materialized (
        select t, postbus.oddities(t) as odd from postbus.topic t where t.id = fates_of_topic.topic_id and t.storage_id is not null
    ), segment as materialized (
        select s.* from topic
         cross join lateral postbus.alike((topic.t)::postbus.topic, array(select o.id >> 10 from unnest(topic.odd) as o)) as s
    ), told as (
        select f.* from topic
         cross join lateral postbus.fates(
            (topic.t).id, array(select row(s.position, s.lane, s.txid, s.count, s.published_at)::postbus.looked_at
                                  from segment s where s.position = s.model), topic.odd) as f
    )
    select s.position, t.first_index, case when s.position = s.model then t.last_index else s.count - 1 end,
           t.group_name, t.subscription_id, t.status, t.required, t.is_before, t.waits
      from segment s join told t on t.position = s.model
     where t.required or t.status <> 'SKIPPED' or exists (select from postbus.subscription living
                                                           where living.id = t.subscription_id and living.state <> 'CANCELLED')
$$;

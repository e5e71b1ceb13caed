-- The statuses of all messages of a topic at each of its groups: see delivery_statuses. Begins like states_of_topic. A function for
-- what they share would have to store all segments and facts of the topic once more, for its result.
create or replace function postbus.delivery_statuses_of_topic(topic_id bigint) returns table (
    sequence        bigint,
    first_index     integer,
    last_index      integer,
    group_name      text,
    subscription_id bigint,
    status          text,
    required        boolean,
    is_before       boolean,
    waits           boolean
)
language plpgsql stable security definer rows 100000
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_nestloop = off
set work_mem = '64MB' as $$
#variable_conflict use_column
declare
    _topic postbus.topic;
    _facts postbus.message_fact[];
begin
    select * into _topic from postbus.topic t where t.id = delivery_statuses_of_topic.topic_id and t.storage_id is not null;
    if not postbus.has_segments(_topic) then
        return;
    end if;
    _facts := postbus.message_facts(_topic);
    return query
        with segment as materialized (
            select s.* from postbus.representatives(_topic, array(select o.id >> 10 from unnest(_facts) as o)) as s
        ), judged as (
            select f.*
              from postbus.delivery_statuses(_topic.id, array(
                       select row(s.sequence, s.lane, s.txid, s.count, s.published_at)::postbus.segment_ref
                         from segment s where s.sequence = s.model), _facts) as f
        )
        select s.sequence, j.first_index, case when s.sequence = s.model then j.last_index else s.count - 1 end,
               j.group_name, j.subscription_id, j.status, j.required, j.is_before, j.waits
          from segment s join judged j on j.sequence = s.model
         where j.required or j.status <> 'SKIPPED' or exists (select from postbus.subscription living
                                                               where living.id = j.subscription_id and living.state <> 'CANCELLED');
end $$;

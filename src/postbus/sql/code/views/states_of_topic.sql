-- The states of all messages of a topic: see states. Messages of a topic that never had a group are PENDING, and not wanted. Begins
-- like delivery_statuses_of_topic, which says why the two share no function.
create or replace function postbus.states_of_topic(topic_id bigint) returns table (
    sequence    bigint,
    first_index integer,
    last_index  integer,
    required    text[],
    completed   text[],
    status      text,
    wanted      boolean
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
    select * into _topic from postbus.topic t where t.id = states_of_topic.topic_id and t.storage_id is not null;
    if not postbus.has_segments(_topic) then
        return;
    end if;
    _facts := postbus.message_facts(_topic);
    return query
        with segment as materialized (
            select s.* from postbus.representatives(_topic, array(select o.id >> 10 from unnest(_facts) as o)) as s
        ), judged as (
            select f.* from postbus.states(_topic.id, array(select row(s.sequence, s.lane, s.txid, s.count, s.published_at)::postbus.segment_ref
                                                              from segment s where s.sequence = s.model), _facts) as f
        )
        select s.sequence, coalesce(j.first_index, 0), case when s.sequence = s.model then coalesce(j.last_index, s.count - 1) else s.count - 1 end,
               coalesce(j.required, '{}'), coalesce(j.completed, '{}'), coalesce(j.status, 'PENDING'), coalesce(j.wanted, false)
          from segment s left join judged j on j.sequence = s.model;
end $$;

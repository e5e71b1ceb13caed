-- The stretches of all groups of a topic, in some lanes or in all, each with the cursor that was reached in it. reads: its
-- subscription goes on from there. lives: the group is not DEAD, so it is required for the messages beyond.
create or replace function postbus.progress(topic_id bigint, lanes integer[] default null) returns table (
    lane            integer,
    subscription_id bigint,
    number          bigint,
    next_number     bigint,
    group_id        bigint,
    group_name      text,
    txid            xid8,
    began           postbus.log_cursor,
    reached         postbus.log_cursor,
    died            postbus.log_position,
    reads           boolean,
    lives           boolean
)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_nestloop = on
set enable_seqscan = off as $$
#variable_conflict use_column
begin
    return query
        select st.lane, st.subscription_id, st.number, lead(st.number) over (partition by st.subscription_id, st.lane order by st.number),
               st.group_id, st.group_name, st.txid, st.began, case when st.reached is null then now.cursor else st.reached end, st.died,
               st.reached is null and coalesce(s.state <> 'CANCELLED', false), st.reached is null and coalesce(s.state in ('ACTIVE', 'PAUSED'), false)
          from postbus.stretch st
          left join postbus.subscription s on s.id = st.subscription_id
          left join lateral (select c.cursor from postbus.cursor c
                              where st.reached is null and c.subscription_id = st.subscription_id and c.lane = st.lane
                              order by c.number desc limit 1) as now on true
         where st.topic_id = progress.topic_id and (progress.lanes is null or st.lane = any (progress.lanes));
end $$;

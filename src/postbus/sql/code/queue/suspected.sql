-- The queues, of those that are given, that have suspects to be tried: see claim_suspects.
create or replace function postbus.suspected(topics text[]) returns text[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off as $$
    select array(select one.topic from unnest(topics) as one (topic)
                  where exists (select from postbus.delayed d
                                 where d.topic_id = postbus.topic_id(one.topic) and d.trial is not null and d.due_at <= (select clock_timestamp())))
$$;

-- Deletes dead letters of a topic for good: those with the given ids, those that died before a time, or all; of one group, if one
-- is named. Returns their number; with dry_run it only counts them.
--
-- Writes: dead_letter; see note_action.  Locks: dead_letter rows.
create or replace function postbus.purge_dead_letters(
    topic       text,
    ids         bigint[] default null,
    died_before timestamptz default null,
    dry_run     boolean default false,
    group_name  text default null
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic    postbus.topic := postbus.existing_topic(topic);
    _chosen   bigint[];
    _missing  text;
    _group_id bigint := case when group_name is not null then (postbus.existing_subscription(topic, group_name)).id end;
begin
    _chosen := array(
        select d.id from postbus.dead_letter d
         where d.topic_id = _topic.id and (_group_id is null or d.subscription_id = _group_id)
           and (purge_dead_letters.ids is null or d.id = any (purge_dead_letters.ids))
           and (died_before is null or d.died_at < died_before)
           for update);
    select string_agg(wanted.id::text, ', ') into _missing
      from unnest(purge_dead_letters.ids) as wanted (id) where wanted.id <> all (_chosen);
    if _missing is not null then
        perform postbus.refuse('PB405', format('no dead letter %s in topic %L', _missing, topic),
            'list them: postbus dead-letters list ' || topic);
    end if;
    if not dry_run and cardinality(_chosen) > 0 then
        delete from postbus.dead_letter d
         where d.topic_id = _topic.id and d.id = any (_chosen) and (_group_id is null or d.subscription_id = _group_id);
        perform postbus.note_action('dead_letters.purge', topic, group_name, affected => cardinality(_chosen), given => jsonb_build_object(
            'ids', purge_dead_letters.ids[:100], 'died_before', died_before));
    end if;
    return cardinality(_chosen);
end $$;

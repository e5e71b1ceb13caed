-- Which topics of a closed leaf no longer keep their messages there, and which do. Of those that do, `held` are those that
-- have only now been found to be past their retention and needed by a group.
create or replace function postbus.judge_leaf(
    storage_id integer,
    epoch      integer,
    as_of      timestamptz,
    out gone bigint[],
    out kept bigint[],
    out held bigint[]
)
language sql as $$
    with part as materialized (
        select part.topic_id, part.held_since,
               case when t.id is null or l.closed_at <= as_of - t.max_retention then 'gone'
                    when l.closed_at > as_of - (postbus.log_retention(t, as_of)).keeps then 'retained'
                    when postbus.is_needed(part.storage_id, part.epoch, part.topic_id, as_of) then 'held'
                    else 'gone' end as judgement
          from postbus.leaf_topic part
          join postbus.log_leaf l on l.storage_id = part.storage_id and l.epoch = part.epoch
          left join postbus.topic t on t.id = part.topic_id
         where part.storage_id = judge_leaf.storage_id and part.epoch = judge_leaf.epoch
    )
    select coalesce(array_agg(p.topic_id) filter (where p.judgement = 'gone'), '{}'),
           coalesce(array_agg(p.topic_id) filter (where p.judgement <> 'gone'), '{}'),
           coalesce(array_agg(p.topic_id) filter (where p.judgement = 'held' and p.held_since is null), '{}')
      from part p
$$;

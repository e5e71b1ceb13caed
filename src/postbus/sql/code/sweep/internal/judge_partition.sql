-- Which topics no longer keep their messages in a closed partition, and whether others do. If only a group still needs them, this
-- is noted, with one of its lanes: until the cursor of that lane moves, nothing has to be read again.
--
-- Writes: partition_topic.
create or replace function postbus.judge_partition(
    partition   postbus.log_partition,
    as_of       timestamptz,
    out gone    bigint[],
    out is_kept boolean
)
language plpgsql
set enable_seqscan = off
set enable_nestloop = off as $$         -- a partition may have thousands of topics, and partition_topic no statistics
declare
    _asked  bigint[];       -- topics past their retention: a group may need them
    _needed bigint[];       -- those that the same group as before needs
    _rest   bigint[];
    _others bigint[];       -- those of the rest that another group needs
begin
    select coalesce(array_agg(part.topic_id) filter (where part.is_over), '{}'),
           coalesce(array_agg(part.topic_id) filter (where part.is_asked), '{}'),
           bool_or(not part.is_over and not part.is_asked) is true
      into gone, _asked, is_kept
      from (select p.topic_id, over.is as is_over,
                   case when over.is or partition.closed_at > as_of - least(t.retention, t.zero_subscription_retention) then false
                        else partition.closed_at <= as_of - (postbus.log_retention(t, as_of)).keeps end as is_asked
              from postbus.partition_topic p
              left join postbus.topic t on t.id = p.topic_id
             cross join lateral (select t.id is null or partition.closed_at <= as_of - t.max_retention as is) as over
             where p.storage_id = partition.storage_id and p.epoch = partition.epoch) as part;
    if _asked = '{}' then
        return;
    end if;
    _needed := array(
        select p.topic_id
          from postbus.groups_in_need(_asked, partition, as_of) as known
          join postbus.partition_topic p on p.storage_id = partition.storage_id and p.epoch = partition.epoch and p.needed_by = known.subscription_id
         where p.needed_number = (select max(c.number) from postbus.cursor c where c.subscription_id = p.needed_by and c.lane = p.needed_lane));
    _rest := array(select one.id from unnest(_asked) as one (id) except select one.id from unnest(_needed) as one (id));
    if _rest <> '{}' then
        with needed as (
            select n.*
              from postbus.find_needed(partition, array(select k.subscription_id from postbus.groups_in_need(_rest, partition, as_of) as k)) as n
        ), noted as (
            update postbus.partition_topic p
               set needed_since = coalesce(p.needed_since, as_of), needed_by = n.subscription_id, needed_lane = n.lane, needed_number = n.number
              from needed n
             where p.storage_id = partition.storage_id and p.epoch = partition.epoch and p.topic_id = n.topic_id
            returning p.topic_id
        )
        select coalesce(array_agg(n.topic_id), '{}') into _others from noted n;
        gone := gone || array(select one.id from unnest(_rest) as one (id) except select one.id from unnest(_others) as one (id));
    end if;
    is_kept := is_kept or _needed <> '{}' or coalesce(_others, '{}') <> '{}';
end $$;

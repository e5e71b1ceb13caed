-- Whether a topic has messages in a leaf that one of its groups has yet to read and keeps. Looks only for one.
--
-- ACTIVE and PAUSED groups keep messages; a DEAD group does for the topic's dead_retention, from the moment when it died.
-- An ACTIVE group that made no progress for the zombie time, although it had this leaf before it, keeps none.
create or replace function postbus.is_needed(storage_id integer, epoch integer, topic_id bigint, as_of timestamptz) returns boolean
language plpgsql as $$
declare
    _lane   record;
    _needed boolean;
begin
    for _lane in
        select last.lane, last.cursor
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id and s.state <> 'CANCELLED'
          join postbus.log_leaf leaf on leaf.storage_id = is_needed.storage_id and leaf.epoch = is_needed.epoch
         cross join lateral (select max(c.at) as at from postbus.current_cursor c where c.subscription_id = s.id) as progress
          join postbus.current_cursor last on last.subscription_id = s.id
         where t.id = is_needed.topic_id
           and case s.state when 'PAUSED' then true
                            when 'DEAD' then s.state_changed_at > as_of - t.dead_retention
                            else greatest(progress.at, s.subscribed_at, s.state_changed_at, leaf.closed_at) > as_of - t.zombie_time end
    loop
        execute format(
            'select exists (select from postbus.%I s
                             where s.topic_id = $1 and s.lane = $2
                               and postbus.unseen($3, s.position, s.txid, s.count, s.published_at) > 0)',
            postbus.leaf_name(storage_id, epoch))
          into _needed
         using is_needed.topic_id, _lane.lane, _lane.cursor;
        if _needed then
            return true;
        end if;
    end loop;
    return false;
end $$;

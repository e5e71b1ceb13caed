-- Whether a leaf has messages that a live group has not had. Looks only for one.
--
-- Live is what is ACTIVE or PAUSED, and also what has become DEAD only just now: after an outage the sweep may come
-- before the heartbeats. A group that made no progress for the zombie time though it had this leaf before it is not.
create or replace function postbus.is_needed(storage_id integer, epoch integer, as_of timestamptz) returns boolean
language plpgsql as $$
declare
    _lane   record;
    _needed boolean;
begin
    for _lane in
        select t.id as topic_id, last.lane, last.cursor
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id and s.state <> 'CANCELLED'
          join postbus.log_leaf leaf on leaf.storage_id = t.storage_id and leaf.epoch = is_needed.epoch
         cross join lateral (select max(c.at) as at from postbus.current_cursor c where c.subscription_id = s.id) as progress
          join postbus.current_cursor last on last.subscription_id = s.id
         where t.storage_id = is_needed.storage_id
           and case s.state when 'PAUSED' then true
                            when 'DEAD' then s.state_changed_at > as_of - t.heartbeat_timeout
                            else greatest(progress.at, s.subscribed_at, s.state_changed_at, leaf.closed_at) > as_of - t.zombie_time end
    loop
        execute format(
            'select exists (select from postbus.%I s
                             where s.topic_id = $1 and s.lane = $2
                               and postbus.unseen($3, s.position, s.txid, s.count, s.published_at) > 0)',
            postbus.leaf_name(storage_id, epoch))
          into _needed
         using _lane.topic_id, _lane.lane, _lane.cursor;
        if _needed then
            return true;
        end if;
    end loop;
    return false;
end $$;

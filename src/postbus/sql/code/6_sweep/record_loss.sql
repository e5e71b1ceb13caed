-- Records how many messages of a leaf that is about to be dropped each group has not had.
--
-- Writes: loss, subscription.
create or replace function postbus.record_loss(storage_id integer, epoch integer, as_of timestamptz) returns void
language plpgsql as $$
declare
    _lane record;
    _lost bigint;
begin
    for _lane in
        select s.id as subscription_id, s.state, t.id as topic_id, last.lane, last.cursor
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id and s.state <> 'CANCELLED'
          join postbus.current_cursor last on last.subscription_id = s.id
         where t.storage_id = record_loss.storage_id
    loop
        execute format(
            'select sum(postbus.unseen($3, s.position, s.txid, s.count, s.published_at)) from postbus.%I s
              where s.topic_id = $1 and s.lane = $2', postbus.leaf_name(storage_id, epoch))
          into _lost
         using _lane.topic_id, _lane.lane, _lane.cursor;
        if _lost > 0 then
            insert into postbus.loss (subscription_id, at, reason, messages)
            values (_lane.subscription_id, as_of,
                    case _lane.state when 'DEAD' then 'the group was DEAD' else 'max_retention or zombie_time had passed' end, _lost);
            update postbus.subscription s set passed_before = s.passed_before + _lost where s.id = _lane.subscription_id;
        end if;
    end loop;
end $$;

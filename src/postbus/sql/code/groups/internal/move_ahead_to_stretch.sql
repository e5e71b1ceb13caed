-- Moves the notes on messages ahead of a subscription's cursor in a lane to the stretch in which it goes on there: its cursor
-- passes messages that are deferred, given up or settled ahead in that stretch.
--
-- Writes: deferred, receipt, dead_letter.
create or replace function postbus.move_ahead_to_stretch(before postbus.stretch, number bigint) returns void
language plpgsql
set enable_seqscan = off as $$
declare
    _ahead bigint[];
begin
    _ahead := array(select r.id from postbus.deferred r
                     where r.subscription_id = before.subscription_id and r.lane = before.lane and r.stretch is not null
                       and postbus.is_ahead(r.subscription_id, r.lane, r.id, r.sequence));
    update postbus.deferred r set stretch = move_ahead_to_stretch.number
     where r.subscription_id = before.subscription_id and r.lane = before.lane and r.id = any (_ahead);
    _ahead := array(select one.id from postbus.settled_ahead a
                     cross join lateral (select postbus.first_id(a.sequence) + index as id
                                           from unnest(a.indexes) as run, generate_series(lower(run), upper(run) - 1) as index) as one
                     where a.subscription_id = before.subscription_id and a.lane = before.lane
                       and postbus.is_ahead(a.subscription_id, a.lane, one.id, a.sequence));
    if _ahead = '{}' then
        return;
    end if;
    update postbus.receipt r set stretch = move_ahead_to_stretch.number
     where r.storage_id = (select t.storage_id from postbus.topic t where t.id = before.topic_id)
       and r.subscription_id = before.subscription_id and r.id = any (_ahead) and r.stretch >= before.number;
    update postbus.dead_letter d set stretch = move_ahead_to_stretch.number
     where d.topic_id = before.topic_id and d.subscription_id = before.group_id and d.id = any (_ahead) and d.stretch >= before.number;
end $$;

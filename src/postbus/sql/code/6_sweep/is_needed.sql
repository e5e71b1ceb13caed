-- Whether a leaf has messages that a live group has not had. Looks only for one.
create or replace function postbus.is_needed(storage_id integer, epoch integer, as_of timestamptz) returns boolean
language plpgsql as $$
declare
    _lane   record;
    _needed boolean;
begin
    for _lane in
        select t.id as topic_id, l.lane, last.cursor
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id and s.state in ('ACTIVE', 'PAUSED')
          join postbus.lane l on l.subscription_id = s.id
         cross join lateral (select c.cursor, c.at from postbus.cursor c
                              where c.subscription_id = l.subscription_id and c.lane = l.lane order by c.number desc limit 1) as last
         where t.storage_id = is_needed.storage_id
           and (s.state = 'PAUSED' or greatest(last.at, s.subscribed_at, s.state_changed_at) > as_of - t.zombie_time)
    loop
        execute format(
            'select exists (select from postbus.%I s
                             where s.topic_id = $1 and s.lane = $2 and not pg_visible_in_snapshot(s.txid, $3)
                               and ($4 is null or not pg_visible_in_snapshot(s.txid, $5) or s.position >= $4))',
            format('segment_%s_%s', storage_id, epoch))
          into _needed
         using _lane.topic_id, _lane.lane, ((_lane.cursor).seen).snapshot, (_lane.cursor).done_position, ((_lane.cursor).target).snapshot;
        if _needed then
            return true;
        end if;
    end loop;
    return false;
end $$;

-- Makes the cursors of a database that was restored into another server work there. What each group had not seen
-- before, it gets; what it had seen out of the order of positions, it may get again. Returns how many cursors were
-- moved. Takes as long as all segments take to be rewritten; nobody may publish or consume meanwhile.
--
-- Writes: segment, cursor, lane, log_leaf, storage_count, subscription, cluster.  Locks: segment and cursor.
create or replace function postbus.rebase() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _old   pg_snapshot := '3:3:';
    _lane  record;
    _first bigint;
    _count bigint := 0;
begin
    lock table postbus.segment, postbus.cursor, postbus.lane in exclusive mode;
    for _lane in
        select l.subscription_id, l.lane, s.topic_id, t.storage_id, last.number, last.cursor, last.passed
          from postbus.lane l
          join postbus.subscription s on s.id = l.subscription_id
          join postbus.topic t on t.id = s.topic_id
         cross join lateral (select c.number, c.cursor, c.passed from postbus.cursor c
                              where c.subscription_id = l.subscription_id and c.lane = l.lane order by c.number desc limit 1) as last
    loop
        -- Without open transactions, what was not seen is all that the old snapshot does not show.
        select min(g.position) into _first from postbus.segment g
         where g.storage_id = _lane.storage_id and g.topic_id = _lane.topic_id and g.lane = _lane.lane
           and not pg_visible_in_snapshot(g.txid, ((_lane.cursor).seen).snapshot)
           and ((_lane.cursor).done_position is null
                or not pg_visible_in_snapshot(g.txid, ((_lane.cursor).target).snapshot)
                or g.position >= (_lane.cursor).done_position);
        insert into postbus.cursor (subscription_id, lane, number, cursor, passed)
        values (_lane.subscription_id, _lane.lane, _lane.number + 1,
                row(row(coalesce(_first - 1, 9223372036854775807 >> 1), '2', _old)::postbus.log_place, null, null, null,
                    (_lane.cursor).since_bound, (_lane.cursor).since_at, (_lane.cursor).since_id)::postbus.log_cursor, _lane.passed);
        _count := _count + 1;
    end loop;
    update postbus.segment g set txid = '3';
    update postbus.log_leaf l set closed_txid = '4' where l.closed_txid is not null;
    update postbus.cursor c
       set cursor.seen.position = postbus.last_position(t.epoch_sequence)
      from postbus.subscription s join postbus.topic t on t.id = s.topic_id
     where s.id = c.subscription_id and ((c.cursor).seen).position = 9223372036854775807 >> 1;
    update postbus.lane l set holder = null, token = gen_random_uuid();
    update postbus.subscription s set subscribed = row((s.subscribed).position, '2', _old)::postbus.log_place;
    update postbus.storage_count c
       set cursor = row(row(postbus.last_position(format('postbus.log_epoch_%s', c.storage_id)), '3', '4:4:'
                            )::postbus.log_place, null, null, null, null, null, null)::postbus.log_cursor;
    delete from postbus.cluster c;
    begin
        insert into postbus.cluster (identifier) select system_identifier from pg_control_system();
    exception when insufficient_privilege then
        null;
    end;
    return _count;
end $$;

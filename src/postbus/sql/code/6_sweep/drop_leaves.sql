-- Drops leaves of a storage that nobody needs any more: their retention is over, and every live group has all of
-- their messages. A DEAD group does not hold them, nor one that made no progress for the topic's zombie time.
-- Past max_retention a leaf goes in any case, and it is recorded which group lost how many messages.
-- Returns their names.
--
-- Never waits: while others use the storage in a way that a drop would have to wait for, it is left for later.
--
-- Writes: log_leaf, loss, tables.
create or replace function postbus.drop_leaves(storage_id integer, as_of timestamptz) returns text[]
language plpgsql as $$
declare
    _dropped text[] := array[]::text[];
    _name    text;
    _leaf    record;
    _keeps   interval;
    _most    interval;
begin
    select max(case when exists (select from postbus.subscription s where s.topic_id = t.id and s.state in ('ACTIVE', 'PAUSED'))
                    then t.retention else greatest(t.retention, t.zero_subscription_retention) end), max(t.max_retention)
      into _keeps, _most
      from postbus.topic t where t.storage_id = drop_leaves.storage_id;
    for _leaf in
        select l.epoch, l.closed_at from postbus.log_leaf l
         where l.storage_id = drop_leaves.storage_id and l.closed_txid is not null
           and l.closed_txid < pg_snapshot_xmin(pg_current_snapshot())      -- all who wrote to it have ended
           and l.closed_at <= as_of - coalesce(_keeps, interval '0')
         order by l.epoch
    loop
        _name := format('segment_%s_%s', storage_id, _leaf.epoch);
        if _leaf.closed_at > as_of - coalesce(_most, interval '0') and postbus.is_needed(storage_id, _leaf.epoch, as_of) then
            continue;
        end if;
        exit when exists (select from pg_locks k
                           where k.relation = any (array[format('postbus.%I', _name)::regclass,
                                                         format('postbus.%I', format('segment_%s', storage_id))::regclass]::oid[])
                             and k.pid <> pg_backend_pid()
                             and k.database = (select d.oid from pg_database d where d.datname = current_database()));
        perform set_config('lock_timeout', '50ms', true);
        begin
            execute format('lock table postbus.%I in access exclusive mode', format('segment_%s', storage_id));
        exception when lock_not_available then
            exit;
        end;
        perform postbus.record_loss(storage_id, _leaf.epoch, as_of);
        execute format('drop table postbus.%I', _name);
        delete from postbus.log_leaf l where l.storage_id = drop_leaves.storage_id and l.epoch = _leaf.epoch;
        _dropped := _dropped || _name;
    end loop;
    return _dropped;
end $$;

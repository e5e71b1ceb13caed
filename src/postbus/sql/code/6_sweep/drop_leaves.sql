-- Drops a leaf of a storage that nobody needs any more: its retention is over, and every live group has all of its
-- messages. A DEAD group does not hold it, nor one that made no progress for the topic's zombie time.
-- Past max_retention a leaf goes in any case, and it is recorded which group lost how many messages.
-- Returns the name of the one that was dropped, and its messages: one at a time, since the lock that it takes lasts to
-- the end of the transaction. `blocked`: there is one to drop, perhaps, and others use it,
-- or may still be writing to it.
--
-- Hardly waits: while a transaction that is open for long uses the storage, the drop is left for later; short ones are
-- waited for, and hold up new ones, for 50 milliseconds at most.
--
-- Writes: log_leaf, loss, tables.
create or replace function postbus.drop_leaves(
    storage_id integer,
    as_of      timestamptz,
    out dropped  text[],
    out messages bigint,
    out blocked  boolean
)
language plpgsql as $$
declare
    _name  text;
    _leaf  record;
    _keeps interval;
    _most  interval;
    _users text[];
begin
    dropped := array[]::text[];
    messages := 0;
    select r.keeps, r.most into _keeps, _most from postbus.log_retention(storage_id) as r;
    blocked := exists (select from postbus.log_leaf l
                        where l.storage_id = drop_leaves.storage_id and l.closed_at <= as_of - _keeps
                          and l.closed_txid >= pg_snapshot_xmin(pg_current_snapshot()));
    for _leaf in
        select l.epoch, l.closed_at, l.messages, l.held_since from postbus.log_leaf l
         where l.storage_id = drop_leaves.storage_id and l.closed_txid is not null
           and l.closed_txid < pg_snapshot_xmin(pg_current_snapshot())      -- all who wrote to it have ended
           and l.closed_at <= as_of - _keeps
         order by l.epoch
    loop
        _name := postbus.leaf_name(storage_id, _leaf.epoch);
        if _leaf.closed_at > as_of - _most and postbus.is_needed(storage_id, _leaf.epoch, as_of) then
            if _leaf.held_since is null then
                update postbus.log_leaf l set held_since = as_of where l.storage_id = drop_leaves.storage_id and l.epoch = _leaf.epoch;
            end if;
            continue;
        end if;
        blocked := true;
        _users := postbus.users_of_leaf(storage_id, _leaf.epoch);
        if _users <> '{}' then
            perform pg_sleep(0.02);
            exit when _users && postbus.users_of_leaf(storage_id, _leaf.epoch);
        end if;
        begin
            perform postbus.record_loss(storage_id, _leaf.epoch, as_of);        -- before the lock, since it may take its time
            perform set_config('lock_timeout', '50ms', true);
            execute format('lock table only postbus.%I in access exclusive mode', format('segment_%s', storage_id));
            execute format('lock table only postbus.%I in access exclusive mode', format('receipt_%s', storage_id));
            execute format('drop table postbus.%I', _name);
            execute format('drop table postbus.%I', format('receipt_%s_%s', storage_id, _leaf.epoch));
        exception when lock_not_available then
            exit;
        end;
        delete from postbus.log_leaf l where l.storage_id = drop_leaves.storage_id and l.epoch = _leaf.epoch;
        dropped := array[_name];
        messages := _leaf.messages;
        blocked := false;
        exit;
    end loop;
end $$;

-- Maintains one log storage, a step at a time: closes partitions that are not written to any more, counts published messages,
-- begins a new partition when the current one has been written to for its period or is full, drops partitions that no group needs,
-- deletes from others the messages that their topics no longer keep, and deletes expired deferred messages. Also folds the cursor
-- ledger, and detects DEAD groups. With if_due, it drops and deletes only if the interval of set_sweeping has passed; it does all
-- else each time.
--
-- Can be killed anywhere and called again; a second caller returns at once. Returns what it did; `more` asks for another call at
-- once. Refuses a transaction that has written. Does nothing in a database that was restored into another server until the database
-- is rebased, since its transaction ids mean nothing there.
--
-- Writes: log_partition, partition_topic, partition_mark, topic_count, receipt, catch_up, storage_count, cursor, subscription,
-- loss, deferred, settled_ahead, group_worker, group_event, group_tally, sweep_job.
-- Locks: an advisory lock for the transaction.
create or replace function postbus.sweep_log_as_of(
    storage_id integer,
    as_of      timestamptz default clock_timestamp(),
    if_due     boolean default false,
    out counted bigint,
    out opened  integer,
    out dropped text[],
    out folded  bigint,
    out dead    bigint,
    out more    boolean,
    out thinned bigint          -- rows that were deleted from partitions that others still need
)
language plpgsql as $$
declare
    _storage  postbus.log_storage;
    _sequence regclass := to_regclass(format('postbus.%I', format('log_epoch_%s', storage_id)));
    _is_new   boolean := pg_sequence_last_value(_sequence) is null;
    _epoch    integer := coalesce(pg_sequence_last_value(_sequence), 1);
    _next     integer;              -- the first missing one of the partitions that there should be
    _began    timestamptz := clock_timestamp();
    _setting  postbus.sweep_setting;
    _drop     record;
    _expired  bigint;
    _ended    xid8 := pg_snapshot_xmin(pg_current_snapshot());
    _last     bigint;
    _number   bigint;
begin
    counted := 0;
    folded := 0;
    dead := 0;
    more := false;
    thinned := 0;
    dropped := array[]::text[];
    -- The id of the transaction must come after the epoch: it closes partitions, and it is part of a position.
    perform postbus.check_fresh();
    if _sequence is null or not pg_try_advisory_xact_lock(hashtext('postbus.sweep_log'), storage_id) then
        return;
    end if;
    begin
        perform postbus.check_cluster();
    exception when sqlstate 'PB507' then
        return;
    end;
    _last := postbus.last_sequence(storage_id);
    counted := postbus.count_published(storage_id);      -- first: it takes a position, for which there must be no transaction id

    -- In a transaction later than the one that began the next partition: its id is higher than those of all that wrote here.
    update postbus.log_partition l set closed_at = as_of, closed_txid = pg_current_xact_id()
     where l.storage_id = sweep_log_as_of.storage_id and l.epoch < _epoch and l.closed_txid is null;

    select * into _storage from postbus.log_storage s where s.id = storage_id;
    _next := (select min(n) from generate_series(_epoch, _epoch + 2) as n
               where not exists (select from postbus.log_partition l where l.storage_id = sweep_log_as_of.storage_id and l.epoch = n));
    if _is_new then     -- as it was before the partitions were read: another session may publish them meanwhile
        more := postbus.publish_partitions(storage_id);
    elsif _next = _epoch then
        perform postbus.add_partition(storage_id, _epoch);       -- restored from a dump that was made while a partition was begun
    elsif _next = _epoch + 1 then
        perform postbus.add_standby(_storage, _next);
    elsif postbus.partition_is_full(_storage, _epoch, as_of) then
        if _next is null then
            _number := coalesce(pg_sequence_last_value('postbus.segment_number'), 0);
            opened := setval(_sequence, _epoch + 1);        -- not nextval: after a crash that would skip 32 epochs
            update postbus.log_partition l set opened_at = as_of, after_number = _number
             where l.storage_id = sweep_log_as_of.storage_id and l.epoch = opened;
        else
            perform postbus.add_partition(storage_id, _next);
        end if;
        more := true;
    else
        perform postbus.mark_partition(_storage, _epoch, _last, as_of);
    end if;

    select * into _setting from postbus.sweep_setting;
    dead := postbus.detect_dead(storage_id, as_of);
    perform postbus.note_run('detect_dead', storage_id, dead, _setting.detection_interval, _began, as_of);
    perform postbus.note_failing(storage_id, as_of);
    perform postbus.fold_tallies(storage_id, as_of);
    perform postbus.finish_catch_ups(storage_id);

    -- Messages that were parked behind a message that ended at the same moment.
    perform postbus.unpark_next(waits.subscription_id, waits.lane, array_agg(distinct waits.key), as_of)
       from (select r.subscription_id, r.lane, r.key
               from postbus.topic t
               join postbus.subscription s on s.topic_id = t.id
               join postbus.deferred r on r.subscription_id = s.id and r.parked
              where t.storage_id = sweep_log_as_of.storage_id) as waits
      group by waits.subscription_id, waits.lane;
    perform postbus.forget_settled(storage_id);
    delete from postbus.group_worker g
     using postbus.topic t join postbus.subscription s on s.topic_id = t.id
     where t.storage_id = sweep_log_as_of.storage_id and g.subscription_id = s.id
       and not exists (select from postbus.worker w where w.name = g.worker)
       and g.joined_at < as_of - interval '1 day';

    folded := postbus.fold_cursors(storage_id, as_of);
    perform postbus.note_run('sweep_log', storage_id, folded, _setting.interval, _began, as_of);
    if not more and (not if_due or postbus.is_due('drop_partitions', storage_id, _setting.interval, as_of)) then
        _began := clock_timestamp();
        select * into _drop from postbus.drop_partitions(storage_id, _ended, as_of);
        _expired := postbus.expire_copies(storage_id, least(_setting.batch_size, 1000), as_of);
        dropped := _drop.dropped;
        thinned := _drop.thinned;
        more := dropped <> '{}' or thinned > 0 or _expired > 0;
        if not _drop.blocked then       -- otherwise it stays due
            perform postbus.note_run('drop_partitions', storage_id, _drop.messages + _expired, _setting.interval, _began, as_of);
        end if;
    end if;
end $$;

-- The work that sweeping should have done three of its intervals ago and has not, one row each. Judges by the tables, even if no
-- process lives, and in partitions that no sweep has closed. Nothing is overdue until the server has run for as long: no process
-- could have done it.
create or replace function postbus.sweep_overdue(as_of timestamptz, up_since timestamptz default pg_postmaster_start_time())
returns setof text
language plpgsql stable as $$
declare
    _setting   postbus.sweep_setting;
    _by        timestamptz;           -- the work should have been done by then
    _partition record;
    _first     timestamptz;
    _count     bigint;
begin
    select * into _setting from postbus.sweep_setting;
    _by := as_of - 3 * greatest(_setting.interval, interval '10 seconds');
    if up_since > _by then
        return;
    end if;
    for _partition in
        select l.storage_id, l.epoch, s.name, period.is as period from postbus.log_partition l
          join postbus.log_storage s on s.id = l.storage_id
         cross join lateral (select postbus.partition_period(s, _by) as is) as period
         where l.closed_txid is null and l.epoch <= postbus.epoch(l.storage_id) and l.opened_at <= _by - period.is
         order by l.storage_id, l.epoch
    loop
        begin       -- rows are appended: the first one is about the oldest
            execute format('select s.published_at from postbus.%I s limit 1',
                           postbus.partition_name(_partition.storage_id, _partition.epoch)) into _first;
        exception when undefined_table then
            continue;       -- dropped meanwhile, with its topic
        end;
        if _first <= _by - _partition.period then
            return next format('the open partition of storage %s (%s) has messages since %s and should have been closed after %s',
                               _partition.storage_id, _partition.name, to_char(_first, 'YYYY-MM-DD HH24:MI:SS'), _partition.period);
        end if;
    end loop;
    -- None in storages where the job has run since: then options have changed.
    return query
        select format('%s messages in %s partitions of storage %s are past their retention', sum(o.messages), count(*), o.storage_id)
          from postbus.overdue_parts(_by) as o
         where not exists (select from postbus.sweep_job j where j.job = 'drop_partitions' and j.storage_id = o.storage_id and j.started_at > _by)
         group by o.storage_id order by o.storage_id;
    if postbus.is_due('sweep', 0, as_of - _by, as_of)
       and (exists (select from postbus.topic t join postbus.finished f on f.topic_id = t.id and f.finished_at <= _by - t.retention)
            or exists (select from postbus.dedup d where d.expires_at <= _by)
            or exists (select from postbus.inbox i where i.expires_at <= _by)) then
        return next 'finished messages, deduplication keys or inbox records are past their time';
    end if;
    select count(*) into _count from postbus.subscription s
     where s.state = 'CANCELLED' and s.state_changed_at < _by - _setting.subscription_retention
       and postbus.is_due('subscriptions', 0, interval '3 hours', as_of);
    if _count > 0 then
        return next format('%s subscriptions that ended are past their retention of %s', _count, _setting.subscription_retention);
    end if;
    _count := (select count(*) from postbus.lease l where l.ends_at <= _by);
    if _count > 0 then
        return next format('%s leases ended before %s and were not given back', _count, to_char(_by, 'YYYY-MM-DD HH24:MI:SS'));
    end if;
    select count(*) into _count
      from postbus.subscription s join postbus.topic t on t.id = s.topic_id
     where s.state = 'ACTIVE' and s.catch_up_of is null
       and s.seen_at < as_of - t.heartbeat_timeout - 4 * greatest(_setting.detection_interval, interval '10 seconds')
       and postbus.is_due('detect_dead', t.storage_id, 3 * greatest(_setting.detection_interval, interval '10 seconds'), as_of);
    if _count > 0 then
        return next format('%s groups are without heartbeats beyond their timeout, and no sweep has checked whether they are DEAD', _count);
    end if;
end $$;

-- Removes what is no longer needed: finished messages past their retention, deduplication keys and inbox records past their
-- window, entries of the audit log past theirs, and processes that have not been seen for a day. One caller at a time: a second
-- caller returns at once, and so does a caller with if_due before the interval of set_sweeping has passed. Removes max_count rows
-- at a time, or batch_size. Returns what it removed, and whether more is left. Each call, due or not, continues moves of queues:
-- see continue_moves.
--
-- Writes: finished, dedup, inbox, audit_entry, crowded, sink_away, worker, sweeper, topic_seen, sweep_job, sweep_sample; see
-- continue_moves.  Locks: an advisory lock for the transaction; dedup and inbox rows (skip locked).
create or replace function postbus.sweep_as_of(
    max_count integer default null,
    as_of     timestamptz default clock_timestamp(),
    if_due    boolean default false,
    out finished_rows bigint,
    out dedup_keys    bigint,
    out inbox_records bigint,
    out workers       bigint,
    out more          boolean
)
language plpgsql as $$
declare
    _began   timestamptz := clock_timestamp();
    _setting postbus.sweep_setting;
    _entries bigint;
begin
    finished_rows := 0;
    dedup_keys := 0;
    inbox_records := 0;
    workers := 0;
    more := false;
    select * into _setting from postbus.sweep_setting;
    if not pg_try_advisory_xact_lock(hashtext('postbus.sweep')) then
        return;
    end if;
    perform postbus.continue_moves();
    if if_due and not postbus.is_due('sweep', 0, _setting.interval, as_of) then
        return;
    end if;
    max_count := coalesce(max_count, _setting.batch_size);
    with ended as (
        select f.ctid from postbus.topic t
         cross join lateral (select f.ctid from postbus.finished f
                              where f.topic_id = t.id and f.finished_at <= as_of - t.retention
                              order by f.finished_at limit max_count) as f
         limit max_count
    )
    delete from postbus.finished f using ended where f.ctid = ended.ctid;
    get diagnostics finished_rows = row_count;

    delete from postbus.dedup d
     where d.ctid = any (array(select old.ctid from postbus.dedup old where old.expires_at <= as_of
                                order by old.expires_at limit max_count for update skip locked));
    get diagnostics dedup_keys = row_count;

    -- Not records that a consumer is just using again after their window.
    delete from postbus.inbox i
     where i.ctid = any (array(select old.ctid from postbus.inbox old where old.expires_at <= as_of
                                order by old.expires_at limit max_count for update skip locked));
    get diagnostics inbox_records = row_count;

    _entries := postbus.sweep_audit(max_count);

    -- Of members whose messages have all been taken from them.
    delete from postbus.crowded c
     where not exists (select from postbus.lease l where l.member = c.member)
       and not exists (select from postbus.deferred r where r.token is not null and r.member = c.member);
    delete from postbus.sink_away a where a.told_at < as_of - interval '1 day';
    delete from postbus.sweeper w where w.seen_at < as_of - interval '1 day';
    delete from postbus.worker w where w.seen_at < as_of - interval '1 day';
    get diagnostics workers = row_count;

    -- Names that have a row in `topic` by now, or are here twice.
    delete from postbus.topic_seen s
     where exists (select from postbus.topic t where t.id = s.topic_id)
        or exists (select from postbus.topic_seen twin where twin.topic_id = s.topic_id and twin.ctid < s.ctid);
    more := greatest(finished_rows, dedup_keys, inbox_records, _entries) >= max_count;
    if postbus.is_due('sweep', 0, _setting.interval, as_of) then
        perform postbus.sample_sweeping(as_of);
    end if;
    perform postbus.note_run('sweep', 0, finished_rows + dedup_keys + inbox_records + _entries, _setting.interval, _began, as_of);
end $$;

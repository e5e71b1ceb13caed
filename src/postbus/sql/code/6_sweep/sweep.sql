-- Removes what is no longer needed: finished messages past their retention, deduplication keys past
-- their window, processes that have not been seen for a day. One at a time; a second caller returns
-- at once. Works in pieces of max_count rows; returns what it removed, and whether more is left.
--
-- Writes: finished, dedup, worker, topic_seen.  Locks: an advisory lock for the transaction.
create or replace function postbus.sweep(
    max_count integer default 10000,
    as_of     timestamptz default clock_timestamp(),
    out finished_rows bigint,
    out dedup_keys    bigint,
    out workers       bigint,
    out more          boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    finished_rows := 0;
    dedup_keys := 0;
    workers := 0;
    more := false;
    if not pg_try_advisory_xact_lock(hashtext('postbus.sweep')) then
        return;
    end if;
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

    delete from postbus.worker w where w.seen_at < as_of - interval '1 day';
    get diagnostics workers = row_count;

    -- Names that have a row by now, or stand here twice.
    delete from postbus.topic_seen s
     where exists (select from postbus.topic t where t.id = s.topic_id)
        or exists (select from postbus.topic_seen twin where twin.topic_id = s.topic_id and twin.ctid < s.ctid);
    more := greatest(finished_rows, dedup_keys) >= max_count;
end $$;

-- Notes that a job has run, if that is worth a write: it has removed something, took long, ran again after a failure, or was not
-- noted for the given time. So an idle process writes one row per job and interval.
--
-- Writes: sweep_job.  Locks: an advisory lock for the transaction.
create or replace function postbus.note_run(
    job        text,
    storage_id integer,
    removed    bigint,
    every      interval,
    began      timestamptz,
    as_of      timestamptz
) returns void
language plpgsql as $$
declare
    _took interval := clock_timestamp() - began;
begin
    if removed = 0 and _took < interval '1 second'
       and exists (select from postbus.sweep_job j
                    where j.job = note_run.job and j.storage_id = note_run.storage_id
                      and j.started_at > as_of - every and (j.failed_at > j.started_at) is not true) then
        return;
    end if;
    -- No session waits for the lock: of two that run the job at the same moment, one is noted.
    if not pg_try_advisory_xact_lock(hashtext('postbus.sweep_job ' || note_run.job), note_run.storage_id) then
        return;
    end if;
    insert into postbus.sweep_job as known (job, storage_id, runs, started_at, took, removed, removed_total)
    values (note_run.job, note_run.storage_id, 1, as_of, _took, note_run.removed, note_run.removed)
    on conflict on constraint sweep_job_pkey do update
       set runs = known.runs + 1, started_at = excluded.started_at, took = excluded.took, removed = excluded.removed,
           removed_total = known.removed_total + excluded.removed;
end $$;

-- Notes that a job has failed, in a transaction of its own: the job's was rolled back.
--
-- Writes: sweep_job.
create or replace function postbus.note_failure(job text, storage_id integer, error text) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    insert into postbus.sweep_job as known (job, storage_id, failed_at, error)
    values (note_failure.job, note_failure.storage_id, clock_timestamp(), left(note_failure.error, 1000))
    on conflict on constraint sweep_job_pkey do update set failed_at = excluded.failed_at, error = excluded.error
$$;

-- Notes that a job has failed, in a transaction of its own, since the job's was rolled back. Refuses jobs that do not exist.
--
-- Writes: sweep_job.
create or replace function postbus.note_failure(job text, storage_id integer, error text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if (job = any (array['return_expired', 'sweep', 'sweep_log', 'subscriptions'])
        and (storage_id = 0 or exists (select from postbus.log_storage s where s.id = storage_id))) is not true then
        perform postbus.refuse('PB402', format('there is no job %s of storage %s', coalesce(quote_literal(postbus.in_line(job, 40)), 'null'),
                                               coalesce(storage_id::text, 'null')),
            'the jobs are return_expired, sweep, sweep_log and subscriptions; those of no storage have storage 0');
    end if;
    insert into postbus.sweep_job as known (job, storage_id, failed_at, error)
    values (note_failure.job, note_failure.storage_id, clock_timestamp(), left(note_failure.error, 1000))
    on conflict on constraint sweep_job_pkey do update set failed_at = excluded.failed_at, error = excluded.error;
end $$;

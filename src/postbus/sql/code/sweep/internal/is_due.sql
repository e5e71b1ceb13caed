-- Whether no run of a job was noted for the given time.
create or replace function postbus.is_due(job text, storage_id integer, every interval, as_of timestamptz) returns boolean
language sql stable as $$
    select not exists (select from postbus.sweep_job j
                        where j.job = is_due.job and j.storage_id = is_due.storage_id and j.started_at > as_of - every)
$$;

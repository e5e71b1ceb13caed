-- The problems of the jobs of sweeping, one row each: a job that failed and has not succeeded since; that took longer than 10
-- seconds; or that did not run for three of its intervals although a process and the server have been there all the time.
create or replace function postbus.sweep_problems(as_of timestamptz) returns setof text
language sql stable as $$
    with job as (
        select expected.job, expected.storage_id, greatest(expected.every, interval '10 seconds') as every,
               noted.started_at, noted.took, noted.failed_at, noted.error, work.since,
               expected.job || case when expected.storage_id > 0 then format(' of storage %s', expected.storage_id) else '' end as name
          from (select global.job, 0 as storage_id, case when global.job = 'subscriptions' then interval '1 hour' else s.interval end as every
                  from postbus.sweep_setting s, unnest(array['return_expired', 'sweep', 'subscriptions']) as global (job)
                 union all
                select of_log.job, storage.id, case when of_log.job = 'detect_dead' then s.detection_interval else s.interval end
                  from postbus.sweep_setting s, postbus.log_storage as storage,
                       unnest(array['sweep_log', 'detect_dead', 'drop_partitions']) as of_log (job)
               ) as expected
          left join postbus.sweep_job noted on noted.job = expected.job and noted.storage_id = expected.storage_id
         cross join (select case when count(*) > 0 then greatest(min(p.started_at), pg_postmaster_start_time()) end as since
                       from (select w.started_at, w.seen_at from postbus.worker w
                              union all
                             select w.started_at, w.seen_at from postbus.sweeper w) as p
                      where p.seen_at > as_of - postbus.alive_for()) as work
    )
    select format('%s failed: %s', name, error) from job
     where failed_at > coalesce(started_at, '-infinity')
     union all
    select format('%s took %s s', name, round(extract(epoch from took), 1)) from job where took > interval '10 seconds'
     union all
    select format('%s has not run since %s', name, to_char(greatest(started_at, since), 'YYYY-MM-DD HH24:MI:SS'))
           || case job when 'drop_partitions' then ': an open transaction may use the log' else '' end
      from job where since is not null and greatest(started_at, since) < as_of - 3 * every
$$;

-- The runs of each job of sweeping, in all processes. Runs that found nothing to do are noted once per interval only. removed
-- counts, for return_expired, returned messages; for sweep, finished rows, deduplication keys and inbox records; for sweep_log,
-- rows of the ledger; for detect_dead, groups; for drop_partitions, messages; for subscriptions, subscriptions.
create or replace view postbus.sweep_jobs as
select j.job, sum(j.runs)::bigint as runs, max(j.started_at) as started_at,
       (array_agg(j.took order by j.started_at desc nulls last))[1] as took,
       (array_agg(j.removed order by j.started_at desc nulls last))[1] as removed,
       sum(j.removed_total)::bigint as removed_total, max(j.failed_at) as failed_at,
       (array_agg(j.error order by j.failed_at desc nulls last))[1] as error
  from postbus.sweep_job j
 group by j.job;

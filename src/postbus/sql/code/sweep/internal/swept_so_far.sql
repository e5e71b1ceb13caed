-- How many messages of PUB_SUB topics were removed.
create or replace function postbus.swept_so_far() returns bigint
language sql stable as $$
    select coalesce(sum(j.removed_total), 0)::bigint from postbus.sweep_job j where j.job = 'drop_partitions'
$$;

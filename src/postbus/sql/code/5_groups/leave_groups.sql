-- A process works for groups no longer: its lanes are free.
--
-- Writes: lane, group_worker.
create or replace function postbus.leave_groups(worker text, subscription_ids bigint[]) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    update postbus.lane l set holder = null, token = gen_random_uuid(), held_since = null
     where l.subscription_id = any (subscription_ids) and l.holder = leave_groups.worker;
    delete from postbus.group_worker g where g.subscription_id = any (subscription_ids) and g.worker = leave_groups.worker;
end $$;

-- Ends the consuming of a process for groups: its lanes are free. With is_stop, this is a planned stop of those groups for which no
-- other living process consumes. The process gives the secret of its heartbeats.
--
-- Two processes that leave together wait for each other: the later one finds that it is the last.
--
-- Writes: lane, group_worker, subscription.  Locks: subscription rows, in the order of their ids.
create or replace function postbus.leave_groups(
    worker           text,
    subscription_ids bigint[],
    is_stop          boolean default false,
    secret           uuid default null
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform postbus.check_process(worker, secret);
    if is_stop then
        perform from postbus.subscription s where s.id = any (subscription_ids) order by s.id for no key update;
    end if;
    update postbus.lane l set holder = null, token = gen_random_uuid(), held_since = null
     where l.subscription_id = any (subscription_ids) and l.holder = leave_groups.worker;
    delete from postbus.group_worker g where g.subscription_id = any (subscription_ids) and g.worker = leave_groups.worker;
    if is_stop then
        perform postbus.note_stop(subscription_ids, worker, clock_timestamp());
    end if;
end $$;

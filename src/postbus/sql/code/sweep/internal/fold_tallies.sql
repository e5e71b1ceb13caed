-- Adds up the rows of group_tally for each minute, for groups of a log storage, and removes those that are older than ten minutes.
--
-- Writes: group_tally.
create or replace function postbus.fold_tallies(storage_id integer, as_of timestamptz) returns void
language plpgsql as $$
declare
    _ids bigint[] := array(select s.id from postbus.subscription s join postbus.topic t on t.id = s.topic_id
                            where t.storage_id = fold_tallies.storage_id and s.catch_up_of is null
                              and exists (select from postbus.group_tally one where one.subscription_id = s.id));
begin
    if _ids = '{}' then
        return;
    end if;
    delete from postbus.group_tally t where t.subscription_id = any (_ids) and t.at < as_of - interval '10 minutes';
    with crowded as (
        select t.subscription_id, date_trunc('minute', t.at) as minute from postbus.group_tally t
         where t.subscription_id = any (_ids) and t.at < as_of - interval '10 seconds'
         group by 1, 2 having count(*) >= 20
    ), gone as (
        delete from postbus.group_tally t using crowded c
         where t.subscription_id = c.subscription_id and t.at >= c.minute and t.at < c.minute + interval '1 minute'
           and t.at < as_of - interval '10 seconds'
        returning t.subscription_id, c.minute, t.at, t.handled, t.failed
    )
    insert into postbus.group_tally (subscription_id, at, handled, failed)
    select g.subscription_id, max(g.at), sum(g.handled), sum(g.failed) from gone g group by g.subscription_id, g.minute;
end $$;

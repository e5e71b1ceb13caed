-- Brings a DEAD group back: it goes on from its position, within the limits of its catch-up. Returns no row if the group is not
-- DEAD. Has to be called in a transaction of its own.
--
-- Writes: see resurrect.
create or replace function postbus.resurrect_group(topic text, group_name text) returns table (missed bigint, skipped bigint)
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select r.missed, r.skipped
      from postbus.subscription s
     cross join lateral postbus.resurrect(array[s.id]) as r
     where s.topic_id = postbus.topic_id(resurrect_group.topic) and s.group_name = resurrect_group.group_name
       and s.state = 'DEAD' and s.catch_up_of is null
$$;

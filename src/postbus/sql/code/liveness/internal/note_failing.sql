-- Notes which groups of a log storage begin to fail: more of their calls fail than health_limits allow. A group has one event when
-- it begins to fail, and the next one only after it stopped failing.
--
-- Writes: subscription, group_event.  Locks: subscription rows (skip locked).
create or replace function postbus.note_failing(storage_id integer, as_of timestamptz) returns void
language plpgsql as $$
begin
    with judged as (
        select s.id, t.name as topic, s.group_name, calls.handled, calls.failed,
               calls.failed >= 5 and calls.failed >= limits.failed_share * (calls.handled + calls.failed) as fails
          from postbus.subscription s
          join postbus.topic t on t.id = s.topic_id
         cross join lateral postbus.recent_calls(s.id) as calls
         cross join lateral postbus.health_limits(t.name, s.group_name) as limits
         where t.storage_id = note_failing.storage_id and s.state <> 'CANCELLED' and s.catch_up_of is null
           and (s.failing_since is not null or exists (select from postbus.group_tally one where one.subscription_id = s.id))
    ), changed as (
        select s.id, j.topic, j.group_name, j.handled, j.failed, j.fails from judged j
          join postbus.subscription s on s.id = j.id
         where (s.failing_since is not null) <> j.fails order by s.id for no key update of s skip locked
    ), noted as (
        update postbus.subscription s set failing_since = case when c.fails then as_of end
          from changed c where s.id = c.id
    )
    insert into postbus.group_event (at, name, topic, group_name, fields)
    select as_of, 'group.failing', c.topic, c.group_name, jsonb_build_object('failed', c.failed, 'calls', c.handled + c.failed)
      from changed c where c.fails;
end $$;

-- Notes a sign of life of pulling groups. An ACTIVE group is seen now. So that its row does not become a hot one, this is written
-- at most twice per heartbeat interval, but at once if the group was stopped. A DEAD group comes back: the result says how many
-- messages it missed, see bring_back. A transaction that has written cannot bring a group back; the group's next pop does.
--
-- Writes: subscription; see bring_back.  Locks: subscription rows (skip locked), in the order of their ids.
create or replace function postbus.note_life(subscription_ids bigint[], as_of timestamptz)
returns table (subscription_id bigint, missed bigint, skipped bigint, "position" text)
language plpgsql as $$
declare
    _dead bigint[];
begin
    _dead := array(select s.id from postbus.subscription s where s.id = any (subscription_ids) and s.state = 'DEAD');
    if _dead <> '{}' and pg_current_xact_id_if_assigned() is null then
        return query select r.subscription_id, r.missed, r.skipped, r.position from postbus.bring_back(_dead) as r;
    end if;
    with reached as (
        select s.id from postbus.subscription s
          join postbus.topic t on t.id = s.topic_id
         where (s.id = any (subscription_ids) or s.catch_up_of = any (subscription_ids)) and s.state = 'ACTIVE'
           and (s.seen_at < as_of - t.heartbeat_interval / 2 or s.stopped_at >= s.seen_at)
         order by s.id for no key update of s skip locked)
    update postbus.subscription s set seen_at = as_of, missed = 0, missed_at = null from reached where s.id = reached.id;
end $$;

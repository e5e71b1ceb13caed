-- Notes a planned stop of groups for which no other living process consumes. Any later sign of life ends it.
--
-- Writes: subscription.
create or replace function postbus.note_stop(subscription_ids bigint[], stopped_by text, as_of timestamptz) returns void
language plpgsql as $$
begin
    update postbus.subscription s set stopped_at = greatest(as_of, s.seen_at), stopped_by = postbus.in_line(note_stop.stopped_by, 200)
     where s.id = any (subscription_ids) and s.state = 'ACTIVE'
       and not exists (select from postbus.group_worker g join postbus.worker w on w.name = g.worker
                        where g.subscription_id = s.id and w.seen_at > as_of - postbus.alive_for());
end $$;

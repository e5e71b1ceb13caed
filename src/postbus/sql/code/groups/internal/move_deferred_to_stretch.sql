-- Moves deferred messages to the current stretch of their subscription, if its cursor was set back before them: the cursor passes
-- them in that stretch, and they were not settled in the stretch before.
--
-- Writes: receipt, deferred.  Locks: rows of deferred.
create or replace function postbus.move_deferred_to_stretch(topic postbus.topic, subscription_id bigint) returns void
language plpgsql as $$
declare
    _ahead tid[];
begin
    _ahead := array(select r.ctid from postbus.deferred r
                     where r.subscription_id = move_deferred_to_stretch.subscription_id and r.stretch <> postbus.stretch_of(r.subscription_id, r.lane)
                       and postbus.is_ahead(r.subscription_id, r.lane, r.id, r.sequence)
                       for update);
    perform postbus.note_left_behind(topic, _ahead, 'SKIPPED');
    update postbus.deferred r set stretch = postbus.stretch_of(r.subscription_id, r.lane), buffered = false where r.ctid = any (_ahead);
end $$;

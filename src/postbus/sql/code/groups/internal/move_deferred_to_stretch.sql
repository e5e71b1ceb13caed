-- Moves deferred messages to the stretch in which their subscription reads now, if it was set back before them: the log passes
-- them by there, and in the stretch before they were not settled either.
--
-- Writes: receipt, deferred.  Locks: rows of deferred.
create or replace function postbus.move_deferred_to_stretch(topic postbus.topic, subscription_id bigint) returns void
language plpgsql as $$
declare
    _again tid[];
begin
    _again := array(select r.ctid from postbus.deferred r
                     where r.subscription_id = move_deferred_to_stretch.subscription_id and r.stretch <> postbus.stretch_of(r.subscription_id, r.lane)
                       and postbus.is_ahead(r.subscription_id, r.lane, r.id, r.sequence)
                       for update);
    perform postbus.note_left_behind(topic, _again, 'SKIPPED');
    update postbus.deferred r set stretch = postbus.stretch_of(r.subscription_id, r.lane), buffered = false where r.ctid = any (_again);
end $$;

-- Lets messages that wait to be tried again, or are in a pop's hands, belong to the stretch in which their subscription reads them now, where it was
-- set back before them: the log passes them by there, and in the stretch before they were not settled, either.
--
-- Writes: receipt, retrying.  Locks: rows of retrying.
create or replace function postbus.read_again(topic postbus.topic, subscription_id bigint) returns void
language plpgsql as $$
declare
    _again tid[];
begin
    _again := array(select r.ctid from postbus.retrying r
                     where r.subscription_id = read_again.subscription_id and r.stretch <> postbus.stretch_of(r.subscription_id, r.lane)
                       and postbus.is_ahead(r.subscription_id, r.lane, r.id, r.position)
                       for update);
    perform postbus.leave_behind(topic, _again, 'SKIPPED');
    update postbus.retrying r set stretch = postbus.stretch_of(r.subscription_id, r.lane), shelved = false where r.ctid = any (_again);
end $$;

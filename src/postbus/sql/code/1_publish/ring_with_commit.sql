-- Lets the commit of this transaction wake the consumers of a topic, if nobody has to wait for that: a commit
-- that notifies makes others that do wait for it, so there is one at a time. Who publishes meanwhile rings after
-- his commit, and learns of it from the setting postbus.rings. A topic may want it always.
--
-- Where transactions may be prepared it is left out: PREPARE TRANSACTION refuses those that notify.
create or replace function postbus.ring_with_commit(topic_id bigint, is_wanted boolean) returns void
language plpgsql as $$
declare
    _rings boolean := is_wanted or (current_setting('max_prepared_transactions') = '0'
                                    and pg_try_advisory_xact_lock(hashtext('postbus.ring')));
begin
    if _rings then
        perform pg_notify('postbus', topic_id::text);
    end if;
    perform set_config('postbus.rings', _rings::text, true);
end $$;

-- Tells of what is published to a topic.
--
-- Consumers: the commit of this transaction wakes them (NOTIFY), if nobody has to wait for that. A commit that notifies
-- makes others that do wait for it, so there is one at a time; who publishes meanwhile rings after his commit. A topic may
-- want it always. Where transactions may be prepared it is left out: PREPARE TRANSACTION refuses those that notify.
--
-- The publisher, by the setting postbus.told: 1 if the commit wakes consumers, 0 if not.
create or replace function postbus.tell(topic_id bigint, is_wanted boolean) returns text
language sql volatile
return set_config('postbus.told',
    case when is_wanted or (current_setting('max_prepared_transactions') = '0' and pg_try_advisory_xact_lock(hashtext('postbus.ring')))
         then '1' || pg_notify('postbus', topic_id::text)::text     -- which is empty
         else '0' end,
    true);

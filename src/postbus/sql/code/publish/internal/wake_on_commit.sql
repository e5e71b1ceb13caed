-- Wakes the consumers of a topic when the publishing transaction commits, by NOTIFY, if no other commit has to wait for that. A
-- commit that notifies makes other such commits wait, so there is one at a time; publishers that commit meanwhile call `wake`
-- afterwards. A topic can be set to notify always. On a server that allows prepared transactions, only such topics notify: PREPARE
-- TRANSACTION refuses transactions that notify.
--
-- The setting postbus.woken tells the publisher: 1 if the commit wakes consumers, 0 if not.
create or replace function postbus.wake_on_commit(topic_id bigint, is_wanted boolean) returns text
language sql volatile
return set_config('postbus.woken',
    case when is_wanted or (current_setting('max_prepared_transactions') = '0' and pg_try_advisory_xact_lock(hashtext('postbus.wake')))
         then '1' || pg_notify('postbus', topic_id::text)::text     -- pg_notify returns nothing
         else '0' end,
    true);

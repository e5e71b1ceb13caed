-- Tells of what is published to a topic.
--
-- Consumers: the commit of this transaction wakes them (NOTIFY), if nobody has to wait for that. A commit that notifies
-- makes others that do wait for it, so there is one at a time; who publishes meanwhile rings after his commit. A topic may
-- want it always. Where transactions may be prepared it is left out: PREPARE TRANSACTION refuses those that notify.
--
-- The publisher, by the setting postbus.told: 1 if the commit wakes consumers, 2 if the topic is a log.
create or replace function postbus.tell(topic_id bigint, is_wanted boolean, is_log boolean) returns void
language plpgsql as $$
declare
    _rings boolean := is_wanted or (current_setting('max_prepared_transactions') = '0'
                                    and pg_try_advisory_xact_lock(hashtext('postbus.ring')));
begin
    if _rings then
        perform pg_notify('postbus', topic_id::text);
    end if;
    perform set_config('postbus.told', case when _rings then case when is_log then '3' else '1' end when is_log then '2' else '0' end, true);
end $$;

-- Finishes messages of a lease. Returns the ids of those that are lost.
--
-- Writes: lease; see keep_finished.  Locks: the lease row, then busy_key rows.
create or replace function postbus.ack(token uuid, ids bigint[]) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _closed   record;
    _lease    postbus.lease;
    _messages postbus.queue_message[];
begin
    select * into _closed from postbus.close_messages(token, ids);
    _lease := _closed.lease;
    _messages := _closed.messages;
    if _lease.token is null then
        return array(select s.message_id from postbus.settle_shelved(token, ids, 'done', null, null, null, null, clock_timestamp()) as s
                      where s.became = 'lost');
    end if;
    if cardinality(_messages) > 0 then
        perform postbus.keep_finished(_lease.topic_id, _lease.member, _lease.ordered, _messages);
    end if;
    return _closed.lost;
end $$;

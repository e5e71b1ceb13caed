-- Gives messages of a lease back untouched: the attempt does not count.
-- Returns the ids of those that are lost.
--
-- Writes: lease, queued.  Locks: the lease row.
create or replace function postbus.release(token uuid, ids bigint[]) returns bigint[]
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
        return array(select s.message_id from postbus.settle_shelved(token, ids, 'release', null, null, null, null, clock_timestamp()) as s
                      where s.became = 'lost');
    end if;
    perform postbus.requeue(_lease.topic_id, _lease.ordered, array(
        select row(m.id, m.published_at, m.attempts - 1, m.priority, m.key, m.correlation_id, m.content_type,
                   m.headers, m.payload)::postbus.queue_message
          from unnest(_messages) as m));
    return _closed.lost;
end $$;

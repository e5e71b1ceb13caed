-- Gives messages of a lease up: they become dead letters at once.
-- Returns the ids of those that are lost.
--
-- Writes: lease, dead_letter.  Locks: the lease row, then busy_key rows.
create or replace function postbus.dead_letter(
    token  uuid,
    ids    bigint[],
    reason text,
    error  text default null
) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _now      timestamptz := clock_timestamp();
    _closed   record;
    _lease    postbus.lease;
    _messages postbus.queue_message[];
begin
    select * into _closed from postbus.close_messages(token, ids);
    _lease := _closed.lease;
    _messages := _closed.messages;
    if _lease.token is null then
        return array(select s.message_id
                       from postbus.settle_shelved(token, ids, 'dead', null, error, coalesce(reason, 'dead-lettered'), null, _now) as s
                      where s.became = 'lost');
    end if;
    if cardinality(_messages) > 0 then
        perform postbus.bury(_lease.topic_id, _lease.ordered, _messages, coalesce(reason, 'dead-lettered'), error, _now);
    end if;
    return _closed.lost;
end $$;

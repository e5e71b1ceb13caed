-- Settles messages that a pop of a group has in hand, all of them where no ids are given: 'done', 'retry', 'dead', or 'release'
-- for an attempt that was none. Says of each what became of it: 'done', 'retried', 'dead', 'released' or 'lost'.
--
-- A message that is tried again blocks its key (unless the group lets others pass): those of its key that the same pop has in
-- hand behind it go back, too, as if they had not been popped, so that they are not done before it.
--
-- Writes: retrying, dead_letter, receipt.  Locks: rows of retrying, in the order of positions.
create or replace function postbus.settle_shelved(
    token        uuid,
    ids          bigint[],
    outcome      text,
    delay        interval,
    error        text,
    reason       text,
    max_attempts integer,
    as_of        timestamptz
) returns table (message_id bigint, became text)
language plpgsql as $$
declare
    _held  postbus.retrying[];
    _group postbus.subscription;
    _topic postbus.topic;
    _most  integer;
    _back  bigint[] := '{}';
    _dead  bigint[] := '{}';
begin
    _held := array(select r from postbus.retrying r
                    where r.token = settle_shelved.token and (ids is null or r.id = any (ids)) order by r.position, r.id for update);
    if cardinality(_held) > 0 then
        select * into _group from postbus.subscription s where s.id = (_held[1]).subscription_id;
        _topic := postbus.subscribed_topic(_group.id);
        _most := least(settle_shelved.max_attempts, _topic.max_attempts);
        _back := array(select h.id from unnest(_held) as h where outcome = 'release' or outcome = 'retry' and h.attempts < _most);
        _dead := array(select h.id from unnest(_held) as h where outcome = 'dead' or outcome = 'retry' and h.attempts >= _most);
    end if;
    if cardinality(_back) > 0 then
        update postbus.retrying r
           set token = null, member = null,
               attempts = case when going.is_asked and outcome = 'retry' then r.attempts else greatest(r.attempts - 1, 0) end,
               due_at = as_of + case when going.is_asked and outcome = 'retry'
                                     then coalesce(settle_shelved.delay, postbus.backoff(_topic, r.attempts)) else interval '0' end,
               last_error = case when going.is_asked then coalesce(left(settle_shelved.error, 4000), r.last_error) else r.last_error end,
               parked = going.is_behind
          from (select own.subscription_id, own.lane, own.id, own.id = any (_back) as is_asked,
                       own.key is not null and _group.on_failure = 'block'
                       and row_number() over (partition by own.subscription_id, own.lane, own.key order by own.position, own.id) > 1 as is_behind
                  from postbus.retrying own
                 where own.token = settle_shelved.token
                   and (own.id = any (_back)
                        or _group.on_failure = 'block'
                           and exists (select from unnest(_held) as before
                                        where before.id = any (_back) and before.subscription_id = own.subscription_id
                                          and before.lane = own.lane and before.key = own.key
                                          and (before.position, before.id) < (own.position, own.id)))) as going
         where r.subscription_id = going.subscription_id and r.lane = going.lane and r.id = going.id;
    end if;
    if cardinality(_back) < cardinality(_held) then
        delete from postbus.retrying r using unnest(_held) as h
         where r.subscription_id = h.subscription_id and r.lane = h.lane and r.id = h.id and h.id <> all (_back);
        insert into postbus.dead_letter (id, subscription_id, topic_id, died_at, reason, last_error, published_at, attempts, priority, key,
                                         correlation_id, content_type, headers, payload)
        select h.id, postbus.group_of(h.subscription_id), _topic.id, as_of,
               left(coalesce(settle_shelved.reason, format('gave up after %s attempt%s', h.attempts, case when h.attempts > 1 then 's' end)), 1000),
               left(coalesce(settle_shelved.error, h.last_error), 4000), h.published_at, h.attempts, 4, h.key, h.correlation_id,
               h.content_type, h.headers, h.payload
          from unnest(_held) as h where h.id = any (_dead)
        on conflict do nothing;
        if _topic.tracking = 'REFERENCE_COUNTING' then
            insert into postbus.receipt (storage_id, epoch, subscription_id, lane, at, worker, id, outcome, attempts, error)
            select _topic.storage_id, postbus.epoch_of(_topic.storage_id, h.position >> 43), h.subscription_id, h.lane, as_of, h.member, h.id,
                   case when h.id = any (_dead) then 'DEAD' else 'COMPLETED' end, h.attempts,
                   left(coalesce(settle_shelved.error, h.last_error), 4000)
              from unnest(_held) as h where h.id <> all (_back);
        end if;
        perform postbus.unpark_retrying(ended.subscription_id, ended.lane, array_agg(distinct ended.key), as_of)
           from unnest(_held) as ended
          where ended.key is not null and ended.id <> all (_back)
          group by ended.subscription_id, ended.lane;
    end if;
    return query
    select wanted.id, case when wanted.id = any (_dead) then 'dead'
                           when wanted.id = any (_back) then case outcome when 'release' then 'released' else 'retried' end
                           when exists (select from unnest(_held) as h where h.id = wanted.id) then 'done'
                           else 'lost' end
      from unnest(coalesce(ids, array(select h.id from unnest(_held) as h))) as wanted (id);
end $$;

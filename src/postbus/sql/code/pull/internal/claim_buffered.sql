-- Leases up to max_count messages from the pull buffers of subscriptions to a pop with this token, of at most max_bytes of payload,
-- but at least one message. Returns their number. Each lease counts an attempt, which begins now. A message whose last attempt has
-- ended with its lease is given up.
--
-- Messages are taken in the order in which they became due; of each key the first ones, in order, while no other pop has a message
-- of that key in hand. The oldest come first, and each key gets its share, so that no key waits for long.
--
-- A message whose lease ended without an answer is a suspect: it may have ended the process that handled it. It is leased alone,
-- to a member that has nothing else in hand, or, after a minute, to any member. If its lease ends again, the attempt counts, and
-- it waits for the topic's backoff. Attempts of messages that were in hand together do not count.
--
-- Losing the first message of a key loses those behind it, too: the next pop handles them after the first.
--
-- If `since` is given, only messages that became due after it are considered: see pop.
--
-- Writes: deferred; see settle_popped.  Locks: rows of deferred (skip locked, and those of the same key behind them).
create or replace function postbus.claim_buffered(
    subscription_ids bigint[],
    topic            postbus.topic,
    token            uuid,
    member           text,
    max_count        integer,
    max_bytes        bigint,
    lease            interval,
    key              text,
    since            timestamptz,
    as_of            timestamptz
) returns integer
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _held       integer[] := array(select l.lane from postbus.lane l join postbus.worker w on w.name = l.holder
                                    where l.subscription_id = any (subscription_ids) and w.seen_at >= as_of - topic.lease);
    _passes     boolean := exists (select from postbus.subscription s where s.id = any (subscription_ids) and s.on_failure = 'pass');
    _heads      tid[];
    _spent      bigint[];
    _count      integer;
    _is_suspect boolean;
begin
    loop
        if key is null then
            _heads := array(
                select due.ctid
                  from unnest(subscription_ids) as part (id)
                 cross join lateral (
                    select r.ctid, r.due_at from postbus.deferred r
                     where r.subscription_id = part.id and not r.parked and r.due_at >= claim_buffered.since and r.due_at <= as_of
                       and r.lane <> all (_held) and (r.key is null or not exists (
                           select from postbus.deferred other
                            where other.subscription_id = r.subscription_id and other.lane = r.lane and other.key = r.key and other.id <> r.id
                              and other.sequence <= postbus.last_in_hand(r.subscription_id, r.lane, r.key)
                              and (other.token is not null and other.due_at > as_of or (other.sequence, other.id) < (r.sequence, r.id))
                              and not (_passes and postbus.awaits_retry(other, as_of))))
                     order by r.due_at limit max_count for update skip locked) as due
                 order by due.due_at limit max_count);
        else
            _heads := postbus.first_of_key(subscription_ids, topic, key, _held, _passes, as_of);
        end if;
        with head as materialized (
            select h.tid, r.subscription_id, r.lane, r.id, r.sequence, r.key, r.attempts, r.token, r.member, r.alone,
                   octet_length(r.payload) as bytes,
                   cardinality(_heads) as heads, row_number() over (order by h.n) as rank, suspect.kind > 0 as is_suspect,
                   first_value(suspect.kind = 1) over (order by h.n) as is_alone
              from unnest(_heads) with ordinality as h (tid, n)
              join postbus.deferred r on r.ctid = h.tid
             cross join lateral (select case when r.token is null and r.alone is null and not r.suspected then 0
                                             when r.due_at <= as_of - interval '1 minute' or not postbus.is_busy(claim_buffered.member, as_of) then 1
                                             else 2 end as kind) as suspect
        ), chosen as (
            select h.tid, h.bytes, h.rank, 0::bigint as n, h.is_alone,
                   h.is_alone and case when h.alone is not null then h.alone when h.token is not null then postbus.was_alone(h.member, h.tid)
                                       else false end as was_alone
              from head h where h.is_alone and h.rank = 1 or not h.is_alone and not h.is_suspect
             union all
            select behind.tid, behind.bytes, h.rank, behind.n, false, false
              from head h
             cross join lateral (
                select next.tid, next.bytes, row_number() over line as n,
                       next.due_at <= as_of and (_passes or bool_and(next.due_at <= as_of) over line)
                       and bool_and(next.token is null and next.alone is null and not next.suspected) over line as is_due
                  from (select r.ctid as tid, octet_length(r.payload) as bytes, r.sequence, r.id, r.due_at, r.token, r.alone, r.suspected
                          from postbus.deferred r
                         where r.subscription_id = h.subscription_id and r.lane = h.lane and r.key = h.key
                           and (r.sequence, r.id) > (h.sequence, h.id)
                         order by r.sequence, r.id
                         limit greatest(least(max_count - h.heads, 4 * (max_count - h.heads) / h.heads + 1), 0)) as next
                window line as (order by next.sequence, next.id)) as behind
             where h.key is not null and h.attempts < 2 and not h.is_alone and not h.is_suspect and behind.is_due
        ), sized as (
            select c.tid, c.is_alone, c.was_alone, sum(c.bytes) over (order by c.n, c.rank) - c.bytes as before,
                   row_number() over (order by c.n, c.rank) as turn
              from chosen c
        ), taken as (
            update postbus.deferred r
               set token = claim_buffered.token, member = claim_buffered.member, parked = false,
                   suspected = s.is_alone, alone = case when s.is_alone then true end,
                   attempts = case when (r.token is not null or r.alone is not null) and not s.was_alone then r.attempts
                                   else r.attempts + 1 end,
                   due_at = as_of + claim_buffered.lease
                            + case when s.was_alone and r.attempts >= 2 then postbus.backoff(topic, r.attempts) else interval '0' end
              from sized s
             where r.ctid = s.tid and s.turn <= max_count and (s.before < max_bytes or s.turn = 1)
               and r.due_at <= as_of       -- not taken by another pop meanwhile
            returning r.id, r.attempts, r.suspected
        )
        select array_agg(taken.id) filter (where taken.attempts > topic.max_attempts), count(*), bool_or(taken.suspected)
          into _spent, _count, _is_suspect from taken;
        if _is_suspect then
            update postbus.deferred r
               set token = null, member = null, parked = true, suspected = true, alone = null, attempts = r.attempts - 1
              from postbus.deferred mine
             where mine.token = claim_buffered.token
               and r.subscription_id = mine.subscription_id and r.lane = mine.lane and r.key = mine.key
               and (r.sequence, r.id) > (mine.sequence, mine.id) and r.token <> claim_buffered.token;
        end if;
        exit when _spent is null;
        update postbus.deferred r set attempts = r.attempts - 1 where r.token = claim_buffered.token and r.id = any (_spent);
        perform postbus.settle_popped(claim_buffered.token, _spent, 'dead', null, null,
                                       format('the lease ended %s times without an answer', topic.max_attempts), null, as_of);
        exit when exists (select from postbus.deferred r where r.token = claim_buffered.token);
    end loop;
    return _count;
end $$;

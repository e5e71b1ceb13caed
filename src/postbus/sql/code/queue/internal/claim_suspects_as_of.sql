-- Leases suspects of a queue, apart from all other messages. Messages that were in hand together are tried an eighth at a time,
-- and finally one by one. See return_expired.
--
-- With is_promised, the caller handles nothing else until the suspects are settled. If it is null, the caller does handle other
-- messages. Such a caller, and a member that has other messages in hand, gets a suspect that should be tried alone only after the
-- suspect has waited for a minute. Then the suspect does not count as alone: if the process ends, no attempt is charged.
--
-- Writes: delayed, lease.  Locks: delayed rows (skip locked).
create or replace function postbus.claim_suspects_as_of(
    topic       text,
    member      text,
    max_count   integer default 1000,
    lease       interval default null,
    is_promised boolean default false,
    as_of       timestamptz default clock_timestamp(),
    out token           uuid,
    out ends_at         timestamptz,
    out lease_length    interval,
    out ordered         boolean,
    out ids             bigint[],
    out published_ats   timestamptz[],
    out attempts        integer[],
    out priorities      smallint[],
    out keys            text[],
    out correlation_ids text[],
    out content_types   text[],
    out headers         text[],
    out payloads        bytea[],
    out outlasted       integer
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
    _topic    postbus.topic := postbus.topic_options(topic);
    _first    record;
    _messages postbus.queue_message[];
    _is_busy  boolean := case when is_promised then false else is_promised is null or postbus.is_busy(member, as_of) end;
begin
    perform postbus.check_member(member);
    perform postbus.check_lease(lease);
    if _topic.paused_at is not null then
        return;
    end if;
    select d.trial, d.due_at into _first from postbus.delayed d
     where d.topic_id = _topic.id and d.trial is not null and d.due_at <= as_of order by d.due_at, d.id limit 1 for update skip locked;
    if not found or (least(_first.trial, max_count) = 1 and _is_busy and _first.due_at > as_of - interval '1 minute') then
        return;
    end if;
    with chosen as (
        select d.ctid from postbus.delayed d
         where d.topic_id = _topic.id and d.trial = _first.trial and d.due_at <= as_of
         order by d.due_at, d.id limit least(_first.trial, max_count) for update skip locked
    ), taken as (
        delete from postbus.delayed d using chosen where d.ctid = chosen.ctid returning d.*
    )
    select array_agg(t.id order by t.id), array_agg(t.published_at order by t.id), array_agg(t.attempts + 1 order by t.id),
           array_agg(t.priority order by t.id), array_agg(t.key order by t.id), array_agg(t.correlation_id order by t.id),
           array_agg(t.content_type order by t.id), array_agg(t.headers::text order by t.id), array_agg(t.payload order by t.id),
           array_agg(row(t.id, t.published_at, t.attempts + 1, t.priority, t.key, t.correlation_id, t.content_type, t.headers,
                         t.payload)::postbus.queue_message order by t.id), bool_or(t.ordered), max(t.outlasted)
      into ids, published_ats, attempts, priorities, keys, correlation_ids, content_types, headers, payloads, _messages, ordered, outlasted
      from taken t;
    if ids is null then
        return;
    end if;
    lease_length := coalesce(claim_suspects_as_of.lease, _topic.lease);
    insert into postbus.lease (token, topic_id, member, ends_at, ordered, open_ids, messages, outlasted, alone)
    values (gen_random_uuid(), _topic.id, claim_suspects_as_of.member, as_of + lease_length, ordered, ids, _messages, outlasted,
            not _is_busy and (is_promised or cardinality(ids) = 1))
    returning lease.token, lease.ends_at into claim_suspects_as_of.token, claim_suspects_as_of.ends_at;
end $$;

-- Leases up to max_count due messages of a topic to one member, of at most max_bytes of payload and headers, but at least one
-- message. A lease is one row, so it has at most 10,000 messages and 64 MiB, whatever the caller asks for: see append_many.
--
-- The messages are returned as arrays, one element each; the token is null if there are none. The member gives next_scan_floor to
-- its next claim of the same topic on this server. `more` says that a claim is likely to find messages at once; if nothing was
-- found, next_due is the time until a message is due. moved: the topic became PUB_SUB, and the messages were left in its queue.
--
-- A claim that finds nothing writes nothing. It counts an attempt of each message, which begins now. If the process ends, only an
-- attempt of a message that was alone counts: see return_expired. Others are claimed first then, and apart: see claim_suspects.
-- Workers claim without with_suspects: they call claim_suspects for these, and no message of the lease counts as alone.
--
-- Writes: queued, delayed, lease, busy_key.  Locks: queued and delayed rows (skip locked), busy_key.
create or replace function postbus.claim_as_of(
    topic         text,
    member        text,
    max_count     integer,
    lease         interval default null,
    scan_floor    text default null,
    max_bytes     bigint default 16777216,
    as_of         timestamptz default clock_timestamp(),
    with_suspects boolean default true,
    out token           uuid,
    out ends_at         timestamptz,
    out lease_length    interval,
    out next_scan_floor text,
    out more            boolean,
    out ordered         boolean,
    out next_due        interval,
    out moved           boolean,
    out ids             bigint[],
    out published_ats   timestamptz[],
    out attempts        integer[],
    out priorities      smallint[],
    out keys            text[],
    out correlation_ids text[],
    out content_types   text[],
    out headers         text[],
    out payloads        bytea[]
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _topic      postbus.topic := postbus.topic_options(topic);
    -- The digit tells the format: a scan floor of another version of Postbus is ignored.
    _scan_floor postbus.scan_floor := case when scan_floor like '2%' then substr(scan_floor, 2)::postbus.scan_floor end;
    _snapshot   pg_snapshot := pg_current_snapshot();
    -- A transaction's snapshots do not tell of its own writes: after a write the scan floor stays where it is.
    _is_used    boolean := pg_current_xact_id_if_assigned() is not null;
    _promoted   timestamptz;
    _found      tid[];
    _chosen     tid[];
    _is_left    boolean;
    _messages   postbus.queue_message[];
begin
    -- Each expression costs time once per transaction, so there are few of them on the way to a message.
    if (max_count >= 1 and (lease is null or lease > interval '0' and lease <= interval '1000 years') and _topic.paused_at is null
        and _topic.storage_id is null and max_count <= 10000 and max_bytes <= 67108864 and length(member) <= 300) is not true then
        select c.moved, c.ordered into moved, _topic.ordered from postbus.check_claim(_topic, topic, member, max_count, lease) as c;
        max_count := least(max_count, 10000);
        max_bytes := least(max_bytes, 67108864);
        if _topic.paused_at is not null then
            more := false;
            ordered := _topic.ordered;
            next_scan_floor := scan_floor;
            return;
        end if;
    end if;

    if with_suspects and exists (select from postbus.delayed d where d.topic_id = _topic.id and d.trial is not null and d.due_at <= as_of) then
        select c.token, c.ends_at, c.lease_length, c.ordered, c.ids, c.published_ats, c.attempts, c.priorities, c.keys, c.correlation_ids,
               c.content_types, c.headers, c.payloads
          into token, ends_at, lease_length, ordered, ids, published_ats, attempts, priorities, keys, correlation_ids, content_types, headers,
               payloads
          from postbus.claim_suspects_as_of(topic, member, max_count, lease, false, as_of) as c;
        if token is not null then
            more := true;
            next_scan_floor := scan_floor;
            return;
        end if;
    end if;
    _promoted := postbus.promote_delayed(_topic.id, _scan_floor, as_of);
    if _topic.ordered then
        -- Finds many, since all messages of a key that is in hand are only parked.
        select f.tids, f.more into _found, more from postbus.find_queued(_topic.id, greatest(max_count, 500), 1 << 30, _scan_floor) as f;
        select c.heads, c.is_left into _chosen, _is_left from postbus.choose_heads(_topic.id, _found, max_count, max_bytes) as c;
        more := more or cardinality(_chosen) = max_count;
    else
        select f.tids, f.more into _chosen, more from postbus.find_queued(_topic.id, max_count, max_bytes, _scan_floor) as f;
    end if;

    ordered := _topic.ordered;
    if _chosen is not null then
        -- In the order of _chosen, which a nested loop keeps.
        select array_agg(q.id), array_agg(q.published_at), array_agg(q.attempts + 1), array_agg(q.priority), array_agg(q.key),
               array_agg(q.correlation_id), array_agg(q.content_type), array_agg(q.headers::text), array_agg(q.payload),
               array_agg(row(q.id, q.published_at, q.attempts + 1, q.priority, q.key, q.correlation_id, q.content_type, q.headers,
                             q.payload)::postbus.queue_message)
          into ids, published_ats, attempts, priorities, keys, correlation_ids, content_types, headers, payloads, _messages
          from unnest(_chosen) as chosen (tid)
          join postbus.queued q on q.ctid = chosen.tid;
        lease_length := coalesce(claim_as_of.lease, _topic.lease);
        with taken as (
            delete from postbus.queued q where q.ctid = any (_chosen)
        )
        insert into postbus.lease (token, topic_id, member, ends_at, ordered, open_ids, messages, alone)
        values (gen_random_uuid(), _topic.id, claim_as_of.member, as_of + lease_length, _topic.ordered, ids, _messages,
                case when not with_suspects then false end)
        returning lease.token, lease.ends_at into token, ends_at;
    elsif _is_left then
        more := false;
        next_due := interval '10 ms';
    else
        select d.due_at - as_of into next_due
          from postbus.delayed d where d.topic_id = _topic.id and d.due_at > as_of order by d.due_at limit 1;
    end if;

    -- Stepping over a few more rows costs less than computing the next scan floor, so that is not done every time.
    _scan_floor.used := _scan_floor.used + 1 + coalesce(cardinality(_chosen), 0);
    if _is_used then
        next_scan_floor := scan_floor;
    elsif _scan_floor.used < 50 then
        next_scan_floor := '2' || _scan_floor::text;
    else
        next_scan_floor := '2' || postbus.raise_scan_floor(_scan_floor, _topic.id, _snapshot, _promoted)::text;
    end if;
end $$;

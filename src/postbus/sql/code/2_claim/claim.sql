-- Leases up to max_count due messages of a topic to one member, and at most max_bytes of payload
-- (but one message always).
--
-- The messages come as arrays, one element each; the token is null where there is nothing to do.
-- floor is to be handed back with the member's next claim of the same topic on this server.
-- more says that asking again at once is worth it; next_due tells, where nothing was found, how long it is
-- until something is expected.
--
-- Of a queue that became PUB_SUB what is left is claimed; moved says so.
--
-- A claim that finds nothing writes nothing. Each message taken counts its attempt: it begins now.
--
-- Writes: queued, delayed, lease, busy_key.  Locks: queued and delayed rows (skip locked), busy_key.
create or replace function postbus.claim(
    topic     text,
    member    text,
    max_count integer,
    lease     interval default null,
    floor     text default null,
    max_bytes bigint default 16777216,
    as_of     timestamptz default clock_timestamp(),
    out token           uuid,
    out ends_at         timestamptz,
    out lease_length    interval,
    out next_floor      text,
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
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _topic     postbus.topic := postbus.topic_options(topic);
    -- The digit tells the format: a floor of another version of Postbus is none.
    _floor     postbus.queue_floor := case when floor like '2%' then substr(floor, 2)::postbus.queue_floor end;
    _snapshot  pg_snapshot := pg_current_snapshot();
    -- What this transaction has done before is in no snapshot of its own: then the floor stays where it is.
    _is_used   boolean := pg_current_xact_id_if_assigned() is not null;
    _promoted  timestamptz;
    _found     tid[];
    _chosen    tid[];
    _is_left   boolean;
begin
    -- Each expression costs time once per transaction, so there are few of them on the way to a message.
    if (max_count >= 1 and (lease is null or lease > interval '0') and _topic.paused_at is null and _topic.storage_id is null) is not true then
        if max_count is null or max_count < 1 then
            perform postbus.refuse('PB402', format('max_count %s is less than 1', max_count), 'claim one message or more');
        elsif lease <= interval '0' then
            perform postbus.refuse('PB402', format('lease %s is not positive', lease), 'give a lease longer than the work takes');
        elsif _topic.storage_id is not null then
            select true, m.ordered into moved, _topic.ordered from postbus.moving m where m.topic_id = _topic.id;
            if moved is null then
                perform postbus.refuse('PB432', format('topic %L is PUB_SUB', topic), 'read it as a group: see subscribe and read_log');
            end if;
        end if;
        if _topic.paused_at is not null then
            more := false;
            ordered := _topic.ordered;
            next_floor := floor;
            return;
        end if;
    end if;

    _promoted := postbus.promote_delayed(_topic.id, _floor, as_of);
    if _topic.ordered then
        -- Many are looked at, since all of a key that is in hand are only parked.
        select f.tids, f.more into _found, more from postbus.find_queued(_topic.id, greatest(max_count, 500), 1 << 30, _floor) as f;
        select c.heads, c.is_left into _chosen, _is_left from postbus.choose_heads(_topic.id, _found, max_count, max_bytes) as c;
        more := more or cardinality(_chosen) = max_count;
    else
        select f.tids, f.more into _chosen, more from postbus.find_queued(_topic.id, max_count, max_bytes, _floor) as f;
    end if;

    if _chosen is not null then
        with taken as (
            delete from postbus.queued q using unnest(_chosen) with ordinality as chosen (tid, n) where q.ctid = chosen.tid
            returning chosen.n, q.id, q.published_at, q.attempts + 1 as attempt, q.priority, q.key, q.correlation_id,
                      q.content_type, q.headers, q.payload
        ), listed as (
            select array_agg(t.id) as ids, array_agg(t.published_at) as published_ats, array_agg(t.attempt) as attempts,
                   array_agg(t.priority) as priorities, array_agg(t.key) as keys, array_agg(t.correlation_id) as correlation_ids,
                   array_agg(t.content_type) as content_types, array_agg(t.headers::text) as headers,
                   array_agg(t.payload) as payloads,
                   array_agg(row(t.id, t.published_at, t.attempt, t.priority, t.key, t.correlation_id, t.content_type, t.headers,
                                 t.payload)::postbus.queue_message) as messages
              from (select * from taken order by taken.n) as t
        ), leased as (
            insert into postbus.lease (token, topic_id, member, ends_at, ordered, open_ids, messages)
            select gen_random_uuid(), _topic.id, claim.member, as_of + coalesce(claim.lease, _topic.lease), _topic.ordered,
                   listed.ids, listed.messages
              from listed
            returning lease.token, lease.ends_at
        )
        select leased.token, leased.ends_at, coalesce(claim.lease, _topic.lease), _topic.ordered, listed.ids, listed.published_ats,
               listed.attempts, listed.priorities, listed.keys, listed.correlation_ids, listed.content_types, listed.headers,
               listed.payloads
          into token, ends_at, lease_length, ordered, ids, published_ats, attempts, priorities, keys, correlation_ids,
               content_types, headers, payloads
          from leased, listed;
    else
        ordered := _topic.ordered;
        if _is_left then
            more := false;
            next_due := interval '10 ms';
        else
            select d.due_at - as_of into next_due
              from postbus.delayed d where d.topic_id = _topic.id and d.due_at > as_of order by d.due_at limit 1;
        end if;
    end if;

    -- Stepping over a few more rows costs less than looking for the new floor: not every time.
    _floor.used := _floor.used + 1 + coalesce(cardinality(_chosen), 0);
    if _is_used then
        next_floor := floor;
    elsif _floor.used < 50 then
        next_floor := '2' || _floor::text;
    else
        next_floor := '2' || postbus.raise_floor(_floor, _topic.id, _snapshot, _promoted)::text;
    end if;
end $$;

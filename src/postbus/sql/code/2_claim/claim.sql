-- Leases up to max_count due messages of a topic to one member, and at most max_bytes of payload
-- (but one message always).
--
-- The messages come as arrays, one element each; the token is null where there is nothing to do.
-- floor is to be handed back with the member's next claim of the same topic on this server.
-- more says that asking again at once is worth it; next_due tells, where nothing was found, how long it is
-- until something is expected.
--
-- A claim that finds nothing writes nothing.
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
    _topic    postbus.topic := postbus.topic_options(topic);
    _floor    postbus.queue_floor := floor::postbus.queue_floor;
    _search   record;
    _taken    record;
    _is_left  boolean := false;
    -- What this transaction has done before is in no snapshot of its own: then the floor stays where it is.
    _is_used  boolean := pg_current_xact_id_if_assigned() is not null;
    _messages postbus.queue_message[];
begin
    if max_count is null or max_count < 1 then
        perform postbus.refuse('PB402', format('max_count %s is less than 1', max_count), 'claim one message or more');
    elsif lease <= interval '0' then
        perform postbus.refuse('PB402', format('lease %s is not positive', lease), 'give a lease longer than the work takes');
    end if;
    more := false;
    ordered := _topic.ordered;
    next_floor := floor;
    if _topic.paused_at is not null then
        return;
    end if;

    _floor := postbus.promote_delayed(_topic.id, _floor, as_of);
    if _topic.ordered then
        -- Many are looked at, since all of a key that is in hand are only parked.
        select * into _search from postbus.find_queued(_topic.id, greatest(max_count, 500), 1 << 30, _floor);
        select * into _taken from postbus.take_ordered(_topic.id, _search.tids, max_count, max_bytes);
        _messages := _taken.messages;
        _is_left := _taken.is_left;
        if not _is_left then
            _floor := _search.floor;
        end if;
    else
        select * into _search from postbus.find_queued(_topic.id, max_count, max_bytes, _floor);
        _messages := postbus.take_queued(_search.tids);
        _floor := _search.floor;
    end if;
    more := _search.more or cardinality(_messages) = max_count;
    if not _is_used then
        next_floor := _floor::text;
    end if;
    if _messages is null then
        if _is_left then
            more := false;
            next_due := interval '10 ms';
            return;
        end if;
        select d.due_at - as_of into next_due
          from postbus.delayed d where d.topic_id = _topic.id and d.due_at > as_of order by d.due_at limit 1;
        return;
    end if;

    select array_agg(m.id), array_agg(m.published_at), array_agg(m.attempts), array_agg(m.priority), array_agg(m.key),
           array_agg(m.correlation_id), array_agg(m.content_type), array_agg(m.headers::text), array_agg(m.payload)
      into ids, published_ats, attempts, priorities, keys, correlation_ids, content_types, headers, payloads
      from unnest(_messages) as m;
    token := gen_random_uuid();
    lease_length := coalesce(lease, _topic.lease);
    ends_at := as_of + lease_length;
    insert into postbus.lease (token, topic_id, member, claimed_at, ends_at, ordered, open_ids, messages)
    values (claim.token, _topic.id, claim.member, as_of, claim.ends_at, _topic.ordered, claim.ids, _messages);
end $$;

-- Shares out the lanes of groups among the processes that consume for them: each gets as many as any other, give or take one.
-- Returns what the caller has to do: 'take' a lane, which is its own from now on; 'give_up' a lane, by release_lanes when it is
-- done with it; 'stop' consuming for a subscription that is not ACTIVE any more, with the state; and forget lanes that are 'lost'.
-- The history of a group that is not among the given subscriptions is returned as 'catch_up': then number is the group's own
-- subscription, and cursor the options.
--
-- A lane is free if it has no holder, or if its holder was not seen for the topic's lease. A process that takes it from such a
-- holder inserts a row into the ledger, so that later settlements of the former holder are refused. A lane in which the former
-- holder is just settling is left for the next call.
--
-- The caller has sent a heartbeat before, and gives the same secret: no process takes lanes in the name of another. If the clock
-- was set forward since, the caller has to send another heartbeat first, or it would take its own lanes from itself. A call that
-- changes nothing writes nothing.
--
-- Writes: lane, cursor, group_worker.  Locks: lane rows (skip locked).
create or replace function postbus.lease_lanes(
    worker           text,
    subscription_ids bigint[],
    tokens           uuid[],
    secret           uuid default null
) returns table (
    subscription_id bigint,
    action          text,
    state           text,
    lane            integer,
    token           uuid,
    number          bigint,
    cursor          text,
    deaths          integer,
    careful_until   bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms' as $$
declare
    _now   timestamptz := clock_timestamp();
    _group record;
    _lane  record;
begin
    perform postbus.check_cluster();
    perform postbus.check_label(worker);
    perform postbus.check_process(worker, secret);
    insert into postbus.group_worker (subscription_id, worker)
    select wanted.id, lease_lanes.worker from unnest(subscription_ids) as wanted (id)
     where not exists (select from postbus.group_worker g where g.subscription_id = wanted.id and g.worker = lease_lanes.worker)
       and exists (select from postbus.subscription s where s.id = wanted.id)
    on conflict do nothing;

    return query
    select wanted.id, 'stop', coalesce(s.state, 'CANCELLED'), null::integer, null::uuid, null::bigint, null::text, null::integer, null::bigint
      from unnest(subscription_ids) as wanted (id) left join postbus.subscription s on s.id = wanted.id
     where s.state is distinct from 'ACTIVE';
    return query
    select null::bigint, 'lost', null::text, null::integer, given.token, null::bigint, null::text, null::integer, null::bigint
      from unnest(tokens) as given (token)
     where not exists (select from postbus.lane l where l.token = given.token);

    return query
    select s.id, 'catch_up', s.state, null::integer, null::uuid, s.catch_up_of, s.catch_up::text, null::integer, null::bigint
      from postbus.subscription s
     where s.catch_up_of = any (subscription_ids) and s.id <> all (subscription_ids) and s.state = 'ACTIVE';

    for _group in
        select s.id, t.lease, t.storage_id, mine.count as held, share.fair,
               exists (select from postbus.lane l left join postbus.worker w on w.name = l.holder
                        where l.subscription_id = s.id and (w.seen_at is null or w.seen_at < _now - t.lease)) as has_free
          from unnest(subscription_ids) as wanted (id)
          join postbus.subscription s on s.id = wanted.id and s.state = 'ACTIVE'
          join postbus.topic t on t.id = s.topic_id
         cross join lateral (select count(*) as count from postbus.lane l where l.subscription_id = s.id and l.token = any (tokens)) as mine
         cross join lateral (select count(*) as count, coalesce(max(one.rank) filter (where one.worker = lease_lanes.worker), 0) as rank
                               from (select g.worker, row_number() over (order by g.joined_at, g.worker) as rank
                                       from postbus.group_worker g join postbus.worker w on w.name = g.worker
                                      where g.subscription_id = s.id and w.seen_at >= _now - t.lease) as one) as alive
         cross join lateral (select t.lanes / greatest(alive.count, 1) + (alive.rank <= t.lanes % greatest(alive.count, 1))::integer
                                    as fair) as share
         where mine.count <> share.fair and alive.rank > 0
    loop
        subscription_id := _group.id;
        state := 'ACTIVE';
        if _group.held > _group.fair then
            action := 'give_up';
            for _lane in
                select l.lane, l.token from postbus.lane l
                 where l.subscription_id = _group.id and l.token = any (tokens)
                 order by l.lane desc limit _group.held - _group.fair
            loop
                lane := _lane.lane;
                token := _lane.token;
                return next;
            end loop;
            continue;
        end if;
        continue when not _group.has_free;
        action := 'take';
        for _lane in
            select l.lane, l.holder, l.deaths, l.careful_until
              from postbus.lane l left join postbus.worker w on w.name = l.holder
             where l.subscription_id = _group.id and (w.seen_at is null or w.seen_at < _now - _group.lease) and l.token <> all (tokens)
             order by l.lane limit _group.fair - _group.held
               for update of l skip locked
        loop
            -- Checked again, now that the lane is locked: another process may have taken it just before.
            continue when exists (select from postbus.lane l join postbus.worker w on w.name = l.holder
                                   where l.subscription_id = _group.id and l.lane = _lane.lane and w.seen_at >= _now - _group.lease);
            lane := _lane.lane;
            token := gen_random_uuid();
            begin
                insert into postbus.cursor (subscription_id, lane, number, cursor, passed, at, fenced_at, worker)
                select c.subscription_id, c.lane, c.number + 1, c.cursor, c.passed, c.at, clock_timestamp(), lease_lanes.worker from postbus.cursor c
                 where c.subscription_id = _group.id and c.lane = _lane.lane order by c.number desc limit 1
                returning cursor.number, cursor.cursor::text into lease_lanes.number, lease_lanes.cursor;
            exception when unique_violation or lock_not_available then
                continue;
            end;
            update postbus.lane l
               set holder = lease_lanes.worker, token = lease_lanes.token, held_since = _now, held_number = lease_lanes.number,
                   deaths = case when l.holder is null then l.deaths
                                 when lease_lanes.number - 1 > l.held_number then 1
                                 else l.deaths + 1 end,
                   careful_until = case when l.holder is null then l.careful_until
                                        else greatest(l.careful_until, postbus.last_sequence(_group.storage_id)) end
             where l.subscription_id = _group.id and l.lane = _lane.lane
            returning l.deaths, l.careful_until into lease_lanes.deaths, lease_lanes.careful_until;
            return next;
        end loop;
    end loop;
end $$;

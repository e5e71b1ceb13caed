-- Continues moves of queues to PUB_SUB: lets groups begin whose queue is empty, and gives late messages to the heir. Any process
-- may call it at any time. Returns what the moves are waiting for: all moves, or that of one topic.
--
-- A transaction that read the topic's row before the change committed may have published to the queue, or be about to. Each such
-- transaction has a lock on the table `topic` until it ends, so a move waits for the transactions that have one after the change.
-- Only a REPEATABLE READ transaction older than the change can publish to the queue later; its messages go to the heir.
--
-- Writes: moving, subscription, busy_key; see hand_over.  Locks: moving rows (skip locked).
create or replace function postbus.continue_moves(name text default null)
returns table (topic text, waiting bigint, retrying bigint, leased bigint, scheduled bigint, transactions integer, ended_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _move  postbus.moving;
    _topic postbus.topic;
    _now   text[];
    _at    timestamptz := clock_timestamp();
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        return;         -- its snapshot would not show what ended transactions have left
    end if;
    for _move in
        select * from postbus.moving m where continue_moves.name is null or m.topic_id = postbus.topic_id(continue_moves.name)
         order by m.topic_id for update skip locked
    loop
        select * into _topic from postbus.topic t where t.id = _move.topic_id;
        if _move.ended_at is null then
            _now := array(select distinct k.virtualtransaction from pg_locks k
                           where k.locktype = 'relation' and k.relation = 'postbus.topic'::regclass and k.granted
                             and k.database = (select d.oid from pg_database d where d.datname = current_database())
                             and k.pid is distinct from pg_backend_pid());
            -- A prepared transaction has another name than before, so the move waits for all of them.
            _move.users := array(select u from unnest(_now) as u where u = any (coalesce(_move.users, _now)) or u like '-1/%');
            update postbus.moving m set users = _move.users where m.topic_id = _move.topic_id and m.users is distinct from _move.users;
        end if;
        -- In statements of their own, after the query of the locks: these see what ended transactions have left.
        select l.waiting, l.retrying, l.leased, l.scheduled into waiting, retrying, leased, scheduled
          from postbus.left_in_queue(_move.topic_id, _at) as l;
        if waiting + retrying > 0 and leased = 0 and (_move.ended_at is not null or (_move.hand_over and _move.users = '{}'))
           and exists (select from postbus.subscription s where s.id = _move.heir and s.state <> 'CANCELLED')
        then
            perform postbus.hand_over(_topic, _move.heir, _move.first_id, _move.ordered and _move.ended_at is null, _at);
            perform pg_notify('postbus', _move.topic_id::text);
            select l.waiting, l.retrying, l.leased, l.scheduled into waiting, retrying, leased, scheduled
              from postbus.left_in_queue(_move.topic_id, _at) as l;
        end if;
        if _move.ended_at is null and _move.users = '{}' and waiting + retrying + leased = 0 then
            update postbus.subscription s
               set state = 'ACTIVE', waits_for_queue = false, state_changed_at = _at, seen_at = _at
             where s.topic_id = _move.topic_id and s.waits_for_queue and s.state = 'PAUSED';
            update postbus.subscription s set waits_for_queue = false where s.topic_id = _move.topic_id and s.waits_for_queue;
            update postbus.moving m set ended_at = _at where m.topic_id = _move.topic_id;
            delete from postbus.busy_key b where b.topic_id = _move.topic_id;
            _move.ended_at := _at;
            perform pg_notify('postbus', _move.topic_id::text);
        end if;
        topic := _topic.name;
        transactions := cardinality(_move.users);
        ended_at := _move.ended_at;
        return next;
    end loop;
end $$;

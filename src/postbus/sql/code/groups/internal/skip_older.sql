-- Moves a subscription past the messages up to a position that were published before a time: each lane on its own, and only lanes
-- that have such messages. Returns the number of these messages. With dry_run it only counts them.
--
-- It skips exactly the messages that are there now: messages of transactions that are open at that position will be delivered,
-- however old they are then. Messages of about the same time may be in either order in the log; then a lane stops at the younger
-- one. Holders of lanes that are moved lose them, and start again from there.
--
-- Writes: cursor, lane, stretch, deferred, subscription, catch_up.  Locks: lane rows.
create or replace function postbus.skip_older(
    subscription_id bigint,
    topic           postbus.topic,
    "position"      postbus.log_position,
    older_than      timestamptz,
    dry_run         boolean
) returns bigint
language plpgsql as $$
declare
    _lane     integer;
    _last     postbus.cursor;
    _next     record;
    _count    bigint := 0;
    _buffered bigint;
begin
    if not dry_run then
        perform from postbus.lane l where l.subscription_id = skip_older.subscription_id order by l.lane for update;
        perform postbus.copy_ahead_to_receipts(topic, skip_older.subscription_id);
    end if;
    for _lane in select l.lane from postbus.lane l where l.subscription_id = skip_older.subscription_id order by l.lane loop
        loop        -- again if a holder has just appended the same number
            select * into _last from postbus.cursor c
             where c.subscription_id = skip_older.subscription_id and c.lane = _lane order by c.number desc limit 1;
            select n.cursor, n.skipped into _next from postbus.cursor_after(topic, _last.cursor, _lane, position, older_than) as n;
            exit when _next.skipped = 0 or dry_run;
            insert into postbus.cursor (subscription_id, lane, number, cursor, passed, fenced_at, moved)
            values (_last.subscription_id, _last.lane, _last.number + 1, _next.cursor, _last.passed, clock_timestamp(), 'skip')
            on conflict do nothing;
            continue when not found;
            perform postbus.begin_stretch(subscription_id, _lane, _last.number + 1, _last.cursor, _next.cursor);
            update postbus.lane l set holder = null, token = gen_random_uuid(), held_since = null, deaths = 0, careful_until = null
             where l.subscription_id = skip_older.subscription_id and l.lane = _lane;
            exit;
        end loop;
        _count := _count + _next.skipped;
    end loop;
    -- Messages in the pull buffer count as passed already.
    _buffered := case when dry_run then (select count(*) from postbus.deferred r
                                          where r.subscription_id = skip_older.subscription_id and r.buffered and r.attempts = 0
                                            and r.published_at < older_than)
                      else postbus.clear_buffer(skip_older.subscription_id, older_than) end;
    if _count > 0 and not dry_run then
        update postbus.subscription s set passed_before = s.passed_before + _count where s.id = skip_older.subscription_id;
        update postbus.catch_up u set total = u.total - _count, skipped = u.skipped + _count where u.subscription_id = skip_older.subscription_id;
    end if;
    return _count + _buffered;
end $$;

-- Moves a subscription past the messages that were published before a time, up to a place; each lane on its own, and
-- only those that have such messages. Returns how many messages that is. With dry_run it only counts.
--
-- Exactly those that are there now: what is still in an open transaction at that place will be delivered, however old
-- it is then. Messages of about the same time may lie in either order in the log; then it stops at the younger one.
-- Whoever holds such a lane loses it, and starts again from there.
--
-- Writes: cursor, lane, stretch, retrying, subscription, catch_up.  Locks: lane rows.
create or replace function postbus.skip_older(
    subscription_id bigint,
    topic           postbus.topic,
    place           postbus.log_place,
    older_than      timestamptz,
    dry_run         boolean
) returns bigint
language plpgsql as $$
declare
    _lane    integer;
    _last    postbus.cursor;
    _next    record;
    _count   bigint := 0;
    _shelved bigint;
begin
    if not dry_run then
        perform from postbus.lane l where l.subscription_id = skip_older.subscription_id order by l.lane for update;
        perform postbus.tell_ahead(topic, skip_older.subscription_id);
    end if;
    for _lane in select l.lane from postbus.lane l where l.subscription_id = skip_older.subscription_id order by l.lane loop
        loop        -- again if a holder has just appended the same number
            select * into _last from postbus.cursor c
             where c.subscription_id = skip_older.subscription_id and c.lane = _lane order by c.number desc limit 1;
            select n.cursor, n.skipped into _next from postbus.cursor_after(topic, _last.cursor, _lane, place, older_than) as n;
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
    -- On the shelf they count as passed already.
    _shelved := case when dry_run then (select count(*) from postbus.retrying r
                                         where r.subscription_id = skip_older.subscription_id and r.shelved and r.attempts = 0
                                           and r.published_at < older_than)
                     else postbus.clear_shelf(skip_older.subscription_id, older_than) end;
    if _count > 0 and not dry_run then
        update postbus.subscription s set passed_before = s.passed_before + _count where s.id = skip_older.subscription_id;
        update postbus.catch_up u set total = u.total - _count, skipped = u.skipped + _count where u.subscription_id = skip_older.subscription_id;
    end if;
    return _count + _shelved;
end $$;

-- Sets the cursors of a group instead of advancing them: all to the given cursor, or, if that is null, each to its own. Processes
-- that consume for the group lose its lanes and start again from there.
--
-- Writes: cursor, lane, stretch.  Locks: lane rows.
create or replace function postbus.move_cursors(
    subscription_id bigint,
    cursor          postbus.log_cursor,
    moved           text
) returns void
language plpgsql as $$
declare
    _lane   integer;
    _last   postbus.cursor;
    _before postbus.log_cursor;
begin
    perform from postbus.lane l where l.subscription_id = move_cursors.subscription_id order by l.lane for update;
    update postbus.lane l set holder = null, token = gen_random_uuid(), held_since = null, deaths = 0, careful_until = null
     where l.subscription_id = move_cursors.subscription_id;
    for _lane in select l.lane from postbus.lane l where l.subscription_id = move_cursors.subscription_id order by l.lane loop
        loop        -- again if a holder has just appended the same number
            select * into _last from postbus.cursor c
             where c.subscription_id = move_cursors.subscription_id and c.lane = _lane order by c.number desc limit 1;
            _before := _last.cursor;
            if (cursor.seen).sequence is not null then
                _last.cursor := move_cursors.cursor;
            end if;
            insert into postbus.cursor (subscription_id, lane, number, cursor, passed, fenced_at, moved)
            values (_last.subscription_id, _last.lane, _last.number + 1, _last.cursor, _last.passed, clock_timestamp(), move_cursors.moved)
            on conflict do nothing;
            exit when found;
        end loop;
        if moved is not null then
            perform postbus.begin_stretch(subscription_id, _lane, _last.number + 1, _before, _last.cursor);
        end if;
    end loop;
end $$;

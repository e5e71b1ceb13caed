-- Moves the place of a group, as subscribe would have set it. Whoever works for it loses its lanes and starts
-- again from there; messages that wait to be tried again stay. With dry_run nothing changes.
-- Returns how many messages the group has before it then.
-- To be called in a transaction of its own.
--
-- Writes: cursor, lane.  Locks: the subscription's row, lane rows.
create or replace function postbus.seek(
    topic      text,
    group_name text,
    start      text,
    start_at   timestamptz default null,
    start_id   bigint default null,
    dry_run    boolean default false
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic  postbus.topic := postbus.topic_options(topic);
    _place  postbus.log_place;
    _cursor postbus.log_cursor;
    _found  postbus.subscription;
    _lane   integer;
begin
    if _topic.storage_id is null then
        perform postbus.refuse('PB432', format('topic %L is a QUEUE', topic), 'only groups of PUB_SUB topics have a place');
    end if;
    _place := postbus.here(_topic.epoch_sequence);
    _cursor := postbus.start_cursor(_topic, start, start_at, start_id, _place);
    _found := postbus.existing_subscription(topic, group_name);
    if not dry_run then
        perform from postbus.lane l where l.subscription_id = _found.id order by l.lane for update;
        update postbus.lane l set holder = null, token = gen_random_uuid(), deaths = 0, careful_until = null
         where l.subscription_id = _found.id;
        for _lane in select l.lane from postbus.lane l where l.subscription_id = _found.id order by l.lane loop
            loop        -- again if a holder has just appended the same number
                insert into postbus.cursor (subscription_id, lane, number, cursor, passed, fenced_at)
                select last.subscription_id, last.lane, last.number + 1, _cursor, last.passed, clock_timestamp()
                  from (select c.* from postbus.cursor c
                         where c.subscription_id = _found.id and c.lane = _lane order by c.number desc limit 1) as last
                on conflict do nothing;
                exit when found;
            end loop;
        end loop;
        perform postbus.set_passed_before(_found.id, _topic, _cursor, _place);
        perform pg_notify('postbus', _topic.id::text);
    end if;
    return postbus.count_unseen(_topic, _cursor, _place.snapshot);
end $$;

-- Records how many messages, of those of a topic in a leaf that are about to go, each group has not had: all up to a position.
--
-- Writes: loss, subscription, group_event.
create or replace function postbus.record_loss(
    storage_id integer,
    epoch      integer,
    topic_id   bigint,
    as_of      timestamptz,
    up_to      bigint default 9223372036854775807
) returns void
language plpgsql as $$
declare
    _group record;
    _lane  record;
    _more  bigint;
    _lost  bigint;
begin
    for _group in
        select s.id, s.state from postbus.subscription s where s.topic_id = record_loss.topic_id and s.state <> 'CANCELLED' order by s.id
    loop
        _lost := 0;
        for _lane in select c.lane, c.cursor from postbus.current_cursor c where c.subscription_id = _group.id loop
            execute format(
                'select sum(postbus.unseen($3, s.position, s.txid, s.count, s.published_at)) from postbus.%I s
                  where s.topic_id = $1 and s.lane = $2 and s.position <= $4', postbus.leaf_name(storage_id, epoch))
              into _more
             using record_loss.topic_id, _lane.lane, _lane.cursor, up_to;
            _lost := _lost + coalesce(_more, 0);
        end loop;
        if _lost > 0 then
            insert into postbus.loss (subscription_id, at, reason, messages)
            values (_group.id, as_of,
                    case _group.state when 'DEAD' then 'the group was DEAD' else 'max_retention or zombie_time had passed' end, _lost);
            insert into postbus.group_event (at, name, topic, group_name, fields)
            select as_of, 'group.lost', t.name, s.group_name,
                   jsonb_build_object('messages', _lost, 'reason',
                       case _group.state when 'DEAD' then 'the group was DEAD' else 'max_retention or zombie_time had passed' end)
              from postbus.subscription s join postbus.topic t on t.id = s.topic_id where s.id = _group.id;
            update postbus.subscription s set passed_before = s.passed_before + _lost where s.id = _group.id;
        end if;
    end loop;
end $$;

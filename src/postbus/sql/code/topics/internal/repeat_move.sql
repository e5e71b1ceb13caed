-- Repeats move_topic while messages are left in the queue. The groups are those that were named the first time. The messages left
-- can still be handed over, to the first group that is named if there is no heir. Refuses a topic that is not moving.
--
-- Writes: moving; see note_action.  Locks: the moving row, and then subscription rows, as continue_moves does.
create or replace function postbus.repeat_move(topic postbus.topic, group_names text[], hand_over boolean) returns void
language plpgsql as $$
declare
    _move  postbus.moving;
    _named bigint[] := '{}';
    _group text;
begin
    select * into _move from postbus.moving m where m.topic_id = topic.id and m.ended_at is null for update;
    if _move.topic_id is null then
        perform postbus.refuse('PB432', format('topic %L is PUB_SUB already', topic.name), 'list its groups: postbus groups list ' || topic.name);
    end if;
    foreach _group in array group_names loop
        _named := _named || (postbus.existing_subscription(topic.name, _group)).id;
    end loop;
    if hand_over then
        if not _move.hand_over then
            perform postbus.note_action('topic.move', topic.name, given => jsonb_build_object('groups', group_names[:100], 'hand_over', true));
        end if;
        _move.heir := coalesce((select s.id from postbus.subscription s where s.id = _move.heir and s.state <> 'CANCELLED'), _named[1]);
        if _move.heir is null then
            perform postbus.refuse('PB402', 'there is no group to hand the queue over to',
            'name a group that takes the place of its consumers: --group NAME');
        end if;
        update postbus.moving m set hand_over = true, heir = _move.heir where m.topic_id = topic.id;
    end if;
end $$;

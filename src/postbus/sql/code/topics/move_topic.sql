-- Makes a QUEUE a PUB_SUB topic while producers and consumers go on. From its commit on, messages go to the log. The queue's
-- consumers still handle messages that are in the queue, or that open transactions publish to the queue. The groups that are named
-- here wait for that, and then begin with the first message of the log: see continue_moves.
--
-- The first group is the heir: it gets messages that are due, or come to the queue, after the groups have begun; with hand_over it
-- gets all that are left there. Returns the numbers of messages left in the queue, and how many of them have another priority than
-- the default, which a log does not have. With dry_run nothing changes. May be repeated while messages are left in the queue: see
-- repeat_move.
--
-- Writes: topic; see begin_subscription, join_scopes, storage_for, begin_move, repeat_move, note_action.  Locks: the topic's row.
create or replace function postbus.move_topic(
    name        text,
    group_names text[] default '{}',
    options     jsonb default '{}',
    hand_over   boolean default false,
    dry_run     boolean default false,
    out waiting     bigint,
    out retrying    bigint,
    out leased      bigint,
    out scheduled   bigint,
    out prioritised bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic postbus.topic := postbus.existing_topic(name);
    _after postbus.topic;
    _start postbus.log_position := row(0, '2', '3:3:');        -- before the first message: the log has none of this topic yet
    _new   postbus.subscription;
    _group text;
    _id    bigint;
    _heir  bigint;
begin
    perform postbus.check_cluster();
    if _topic.storage_id is not null then
        perform postbus.repeat_move(_topic, group_names, hand_over and not dry_run);
    elsif _topic.paused_at is not null then
        perform postbus.refuse('PB408', format('topic %L is paused, and its groups would wait for what is in the queue', name),
            'resume it first: postbus topics resume ' || name);
    elsif hand_over and cardinality(group_names) = 0 then
        perform postbus.refuse('PB402', 'there is no group to hand the queue over to',
            'name a group that takes the place of its consumers: --group NAME');
    end if;
    foreach _group in array group_names loop
        perform postbus.check_group_name(_group);
    end loop;
    _after := postbus.with_options(_topic, '{"ordered": false}' || options || '{"semantics": "PUB_SUB"}');
    select l.waiting, l.retrying, l.leased, l.scheduled into waiting, retrying, leased, scheduled
      from postbus.left_in_queue(_topic.id, clock_timestamp()) as l;
    prioritised := (select count(*) from postbus.queued q where q.topic_id = _topic.id and q.priority <> 4);
    if dry_run or _topic.storage_id is not null then
        return;
    end if;
    _after.storage_id := postbus.storage_for(_after);
    perform postbus.save_topic(_after);
    foreach _group in array group_names loop
        _new.group_name := _group;
        _new.state := 'PAUSED';
        _new.start := 'FROM_NOW';
        _new.subscribed := _start;
        _new.waits_for_queue := true;
        _id := (select b.subscription_id from postbus.begin_subscription(_after, _new, postbus.cursor_at(_start)) as b);
        _heir := coalesce(_heir, _id);
    end loop;
    perform postbus.join_scopes(_after, _start);
    perform postbus.begin_move(_topic, _heir, hand_over);
    perform postbus.note_action('topic.move', name, affected => waiting + retrying + leased,
                                given => jsonb_build_object('groups', group_names[:100], 'hand_over', hand_over),
                                before => postbus.differing(postbus.options_of(_topic), postbus.options_of(_after)),
                                after => postbus.differing(postbus.options_of(_after), postbus.options_of(_topic)));
    perform pg_notify('postbus', _topic.id::text);
end $$;

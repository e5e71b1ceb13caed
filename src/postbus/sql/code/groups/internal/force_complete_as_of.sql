-- Moves the live groups of a topic, or one of them, past all messages that were published longer ago than older_than, because a
-- group will not handle them. A group skips those that it has not settled, and their deliveries become SKIPPED. Messages that wait
-- for a retry stay. Returns how many messages each group skips, for groups that skip any. With dry_run nothing changes. Has to be
-- called in a transaction of its own.
--
-- Writes: see skip_older and note_action.  Locks: subscription rows, lane rows.
create or replace function postbus.force_complete_as_of(
    topic      text,
    older_than interval,
    group_name text default null,
    dry_run    boolean default false,
    as_of      timestamptz default clock_timestamp()
) returns table (name text, messages bigint)
language plpgsql as $$
declare
    _topic    postbus.topic := postbus.topic_options(topic);
    _position postbus.log_position;
    _group    postbus.subscription;
    _part     bigint;
    _by       jsonb := '{}';      -- messages, by group
    _total    bigint := 0;
begin
    if _topic.storage_id is null then
        perform postbus.refuse('PB432', format('topic %L is a QUEUE', topic),
            'a QUEUE has no groups to move on; to delete all its waiting messages, whatever their age: postbus topics purge ' || topic);
    elsif older_than is null or older_than < interval '0' then
        perform postbus.refuse('PB402', format('older_than %s is not a duration', coalesce(older_than::text, 'null')), 'give one such as 7 days');
    end if;
    _position := postbus.take_position(_topic.storage_id);
    if group_name is not null then
        perform postbus.existing_subscription(topic, group_name);
    end if;
    for _group in
        select * from postbus.subscription s
         where s.topic_id = _topic.id and s.catch_up_of is null and s.state in ('ACTIVE', 'PAUSED')
           and (force_complete_as_of.group_name is null or s.group_name = force_complete_as_of.group_name)
         order by s.id for no key update
    loop
        name := _group.group_name;
        messages := 0;
        for _part in
            select s.id from postbus.subscription s where s.id = _group.id or (s.catch_up_of = _group.id and s.state <> 'CANCELLED') order by s.id
        loop
            messages := messages + postbus.skip_older(_part, _topic, _position, as_of - older_than, dry_run);
        end loop;
        if messages > 0 then
            _by := _by || jsonb_build_object(name, messages);
            _total := _total + messages;
            return next;
        end if;
    end loop;
    if not dry_run then
        if _total > 0 then
            perform postbus.note_action('group.force_complete', topic, group_name, affected => _total,
                                        given => jsonb_build_object('older_than', older_than), after => jsonb_build_object('skipped', _by));
        end if;
        perform pg_notify('postbus', _topic.id::text);
    end if;
end $$;

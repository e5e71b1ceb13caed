-- Records how many messages of a partition each group has not read before they are deleted: of the given topics, all up to a
-- sequence.
--
-- Writes: loss, subscription, group_event.
create or replace function postbus.record_loss(
    partition postbus.log_partition,
    topic_ids bigint[],
    as_of     timestamptz,
    up_to     bigint default 9223372036854775807
) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _lost record;
begin
    for _lost in execute format(
        'select s.id, s.group_name, t.name as topic, unseen.messages,
                case s.state when ''DEAD'' then ''the group was DEAD'' else ''max_retention or zombie_time had passed'' end as reason
           from unnest($1) as one (id)
           join postbus.topic t on t.id = one.id
           join postbus.subscription s on s.topic_id = t.id and s.state <> ''CANCELLED''
          cross join lateral (select sum(postbus.unseen_in_segment(c.cursor, g.sequence, g.txid, g.count, g.published_at)) as messages
                                from postbus.current_cursor c
                                join postbus.%I g on g.topic_id = t.id and g.lane = c.lane and g.sequence <= $3
                               where c.subscription_id = s.id and not postbus.has_passed(c.cursor, $2)) as unseen
          where unseen.messages > 0 order by s.id', postbus.partition_name(partition.storage_id, partition.epoch))
        using topic_ids, partition, up_to
    loop
        insert into postbus.loss (subscription_id, at, reason, messages) values (_lost.id, as_of, _lost.reason, _lost.messages);
        insert into postbus.group_event (at, name, topic, group_name, fields)
        values (as_of, 'group.lost', _lost.topic, _lost.group_name,
                jsonb_build_object('messages', _lost.messages, 'reason', _lost.reason));
        update postbus.subscription s set passed_before = s.passed_before + _lost.messages where s.id = _lost.id;
    end loop;
end $$;

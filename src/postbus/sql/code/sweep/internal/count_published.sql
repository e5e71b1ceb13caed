-- Counts the messages that were published to a log storage since the last call, as a reader that sees every segment once. Returns
-- their number.
--
-- Writes: topic_count, storage_count, log_partition, partition_topic.
create or replace function postbus.count_published(storage_id integer) returns bigint
language plpgsql as $$
declare
    _cursor       postbus.log_cursor := (select c.cursor from postbus.storage_count c where c.storage_id = count_published.storage_id);
    _seen         postbus.log_position := coalesce(_cursor.seen, row(0, '2', '3:3:')::postbus.log_position);
    _target       postbus.log_position;
    _late         xid8[] := array(select x from pg_snapshot_xip(_seen.snapshot) as x where x <= _seen.txid);
    _partition    record;
    _one          record;
    _count        bigint := 0;
    _in_partition bigint;
begin
    _target.sequence := postbus.last_sequence(storage_id);
    _target.snapshot := pg_current_snapshot();
    for _partition in
        select l.epoch from postbus.log_partition l
         where l.storage_id = count_published.storage_id
           and ((l.epoch + 1)::bigint << 43 > _seen.sequence or l.closed_txid is null
                or l.closed_txid > least(_late[1], pg_snapshot_xmax(_seen.snapshot)))
         order by l.epoch
    loop
        _in_partition := 0;
        for _one in execute format(
            'select unseen.topic_id, sum(unseen.count) as messages, sum(unseen.bytes) as bytes, min(unseen.published_at) as first_at
               from (select s.topic_id, s.count, s.bytes, s.published_at from postbus.%1$I s
                      where s.sequence > $1 and s.txid > $2 and not pg_visible_in_snapshot(s.txid, $3) and pg_visible_in_snapshot(s.txid, $4)
                      union all
                     select s.topic_id, s.count, s.bytes, s.published_at from postbus.%1$I s
                      where s.txid = any ($5) and pg_visible_in_snapshot(s.txid, $4)
                      union all
                     select s.topic_id, s.count, s.bytes, s.published_at from postbus.%1$I s
                      where s.txid >= pg_snapshot_xmax($3) and s.txid <= $2 and pg_visible_in_snapshot(s.txid, $4)) as unseen
              group by unseen.topic_id', postbus.partition_name(storage_id, _partition.epoch))
            using _seen.sequence, _seen.txid, _seen.snapshot, _target.snapshot, _late
        loop
            _target.txid := pg_current_xact_id();
            insert into postbus.topic_count as known (topic_id, messages, bytes) values (_one.topic_id, _one.messages, _one.bytes)
            on conflict on constraint topic_count_pkey do update
               set messages = known.messages + excluded.messages, bytes = known.bytes + excluded.bytes;
            insert into postbus.partition_topic as known (storage_id, epoch, topic_id, messages, first_at)
            values (count_published.storage_id, _partition.epoch, _one.topic_id, _one.messages, _one.first_at)
            on conflict on constraint partition_topic_pkey do update
               set messages = known.messages + excluded.messages, first_at = least(known.first_at, excluded.first_at);
            _in_partition := _in_partition + _one.messages;
        end loop;
        if _in_partition > 0 then
            update postbus.log_partition l set messages = l.messages + _in_partition
             where l.storage_id = count_published.storage_id and l.epoch = _partition.epoch;
            _count := _count + _in_partition;
        end if;
    end loop;
    if _count > 0 then
        insert into postbus.storage_count as known (storage_id, cursor)
        values (count_published.storage_id, postbus.cursor_at(_target))
        on conflict on constraint storage_count_pkey do update set cursor = excluded.cursor;
    end if;
    return _count;
end $$;

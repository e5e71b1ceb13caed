-- A lane's cursor, moved past the messages up to a position that were published before a time; and how many messages it skips.
--
-- A cursor in the middle of a step goes on to its target first: what is done of the step is known for that target only.
create or replace function postbus.cursor_after(
    topic      postbus.topic,
    before     postbus.log_cursor,
    lane       integer,
    "position" postbus.log_position,
    older_than timestamptz,
    out cursor  postbus.log_cursor,
    out skipped bigint
)
language plpgsql as $$
declare
    _was_in_step boolean;
    _stop_at     bigint;
    _older       bigint;
    _found       record;
    _partition   integer;
begin
    cursor := before;
    skipped := 0;
    loop
        _was_in_step := (cursor.target).sequence is not null;
        if not _was_in_step then
            cursor.target := case when (cursor.until).sequence is null then position else cursor.until end;
        end if;
        _stop_at := null;
        _older := 0;
        for _partition in select l.epoch from postbus.log_partition l where l.storage_id = topic.storage_id order by l.epoch loop
            continue when not postbus.lock_partition(topic.storage_id, _partition);
            execute format(
                'with before as (
                    select s.sequence, s.published_at < $5 as is_older, u.unseen
                      from postbus.%I s
                     cross join lateral postbus.unseen_in_segment($3, s.sequence, s.txid, s.count, s.published_at) as u (unseen)
                     where s.topic_id = $1 and s.lane = $2 and pg_visible_in_snapshot(s.txid, $4) and u.unseen > 0
                 ), stop as (
                    select min(b.sequence) as at from before b where not b.is_older
                 )
                 select stop.at, coalesce(sum(b.unseen) filter (where stop.at is null or b.sequence < stop.at), 0) as older
                   from stop left join before b on true group by stop.at', postbus.partition_name(topic.storage_id, _partition))
              into _found
             using topic.id, lane, cursor, (cursor.target).snapshot, older_than;
            _older := _older + _found.older;
            _stop_at := _found.at;
            exit when _stop_at is not null;
        end loop;
        skipped := skipped + _older;
        if _stop_at is not null then
            if skipped > 0 then     -- otherwise it stays, perhaps in the middle of this segment
                cursor.done_sequence := _stop_at;
                cursor.done_index := -1;
            end if;
            return;
        end if;
        cursor.seen := cursor.target;
        cursor.target := null;
        cursor.done_sequence := null;
        cursor.done_index := null;
        exit when not _was_in_step;
    end loop;
end $$;

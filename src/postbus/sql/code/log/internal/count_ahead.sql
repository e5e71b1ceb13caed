-- Counts the messages that a position shows and that are ahead of the cursors of a topic. from_id is the id from which on there are
-- `newest` of them: null if there are no more than that, or if newest is null.
--
-- Partitions above all cursors are not read: the sweep has counted their messages, and its count is corrected by messages that the
-- counter has seen and the position does not show, or the other way round, and by messages that a cursor has already seen there.
-- Other partitions are read above the lowest cursor, and below it for late segments. The partition that has from_id is read as a
-- whole.
create or replace function postbus.count_ahead(
    topic   postbus.topic,
    cursors postbus.log_cursor[],       -- of lane 0, 1, ...
    until   postbus.log_position,
    newest  bigint,
    out messages bigint,
    out from_id  bigint
)
language plpgsql
set enable_seqscan = off as $$
declare
    -- Segments that one position does not show, and the snapshot of another one does: see log_position.
    _between constant text :=
        '(select s.lane, s.sequence, s.txid, s.count, s.published_at from postbus.%1$I s
           where s.topic_id = $1 and s.sequence > (%2$s).sequence and s.txid > (%2$s).txid
             and not pg_visible_in_snapshot(s.txid, (%2$s).snapshot) and pg_visible_in_snapshot(s.txid, (%3$s).snapshot)
           union all
          select s.lane, s.sequence, s.txid, s.count, s.published_at from postbus.%1$I s
           where s.topic_id + 0 = $1 and pg_visible_in_snapshot(s.txid, (%3$s).snapshot)
             and s.txid = any (array(select x from pg_snapshot_xip((%2$s).snapshot) as x where x <= (%2$s).txid))
           union all
          select s.lane, s.sequence, s.txid, s.count, s.published_at from postbus.%1$I s
           where s.topic_id + 0 = $1 and pg_visible_in_snapshot(s.txid, (%3$s).snapshot)
             and s.txid >= pg_snapshot_xmax((%2$s).snapshot) and s.txid <= (%2$s).txid)';
    _late      xid8[];      -- segments below the cursors' sequences that cursors have not seen are of these transactions,
    _from      xid8;        -- or of those from this one
    _to        xid8;        -- up to this one
    _partition record;
    _begin     bigint;
    _low       bigint;
    _since     bigint;      -- some cursors leave out messages up to here, by their ids
    _plain     boolean;
    _table     text;
    _unseen    text;        -- the query of the segments that cursors have not seen
    _more      bigint;
begin
    messages := 0;
    -- The least and the greatest: PostgreSQL 14 and 15 have no min and max of transaction ids.
    select (array_agg(pg_snapshot_xmax((c.seen).snapshot) order by pg_snapshot_xmax((c.seen).snapshot)))[1],
           (array_agg((c.seen).txid order by (c.seen).txid desc nulls last))[1],
           array(select x from unnest(cursors) as each cross join lateral pg_snapshot_xip((each.seen).snapshot) as x)
      into _from, _to, _late
      from unnest(cursors) as c;
    for _partition in
        select l.epoch, coalesce(part.messages, 0) as counted, coalesce(part.first_at, 'infinity') as first_at,
               coalesce((counter.cursor).seen, row(0, '2', '3:3:')::postbus.log_position) as counter
          from postbus.log_partition l
          left join postbus.storage_count counter on counter.storage_id = l.storage_id
          left join postbus.partition_topic part on part.storage_id = l.storage_id and part.epoch = l.epoch and part.topic_id = topic.id
         where l.storage_id = topic.storage_id order by l.epoch desc
    loop
        continue when not postbus.lock_partition(topic.storage_id, _partition.epoch);
        _table := postbus.partition_name(topic.storage_id, _partition.epoch);
        _begin := _partition.epoch::bigint << 43;
        select bool_and(((c.seen).sequence <= _begin and coalesce(c.done_sequence, 0) < _begin and ((c.until).snapshot) is null
                         and (c.since_at is null or c.since_at <= _partition.first_at or c.since_bound < _begin)) is true),
               min(greatest((c.seen).sequence, case when c.since_bound >> 43 > _partition.epoch then _begin + (c.since_id >> 10) - 1 end)),
               max(_begin + (c.since_id >> 10)) filter (where c.since_bound >= _begin)
          into _plain, _low, _since
          from unnest(cursors) as c;
        if _plain and _since is not null then
            execute format('select not exists (select from postbus.%I s where s.topic_id = $1 and s.sequence <= $2)', _table)
               into _plain using topic.id, _since;
        end if;
        if _plain then
            execute format(
                'with lane as (select n - 1 as lane, $2[n] as cursor from generate_subscripts($2, 1) as n)
                 select sum(change.messages)
                   from (select postbus.unseen_in_segment(c.cursor, s.sequence, s.txid, s.count, s.published_at)
                           from ' || format(_between, _table, '$3', '$4') || ' as s join lane c on c.lane = s.lane
                          union all
                         select -s.count from ' || format(_between, _table, '$4', '$3') || ' as s
                          union all
                         select postbus.unseen_in_segment(c.cursor, s.sequence, s.txid, s.count, s.published_at) - s.count
                           from postbus.%I s join lane c on c.lane = s.lane
                          where s.topic_id + 0 = $1 and s.txid < $5
                            and pg_visible_in_snapshot(s.txid, ($3).snapshot) and pg_visible_in_snapshot(s.txid, ($4).snapshot)
                        ) as change (messages)', _table)
              into _more
             using topic.id, cursors, _partition.counter, until,
                   (select pg_snapshot_xmax((c.seen).snapshot) from unnest(cursors) as c order by 1 desc nulls last limit 1);
            _more := _partition.counted + coalesce(_more, 0);
        end if;
        _unseen := format(
            'with lane as (select n - 1 as lane, $2[n] as cursor from generate_subscripts($2, 1) as n
             ), there as (
                select s.sequence, s.lane, s.txid, s.count, s.published_at from postbus.%1$I s where s.topic_id = $1 and s.sequence > $4
                 union all
                (select s.sequence, s.lane, s.txid, s.count, s.published_at from postbus.%1$I s
                  where s.topic_id = $1 and s.sequence <= $4 and s.txid = any ($5)
                  union
                 select s.sequence, s.lane, s.txid, s.count, s.published_at from postbus.%1$I s
                  where s.topic_id = $1 and s.sequence <= $4 and s.txid >= $6 and s.txid <= $7)
             ), unseen as (
                select s.sequence, s.count, postbus.unseen_in_segment(c.cursor, s.sequence, s.txid, s.count, s.published_at) as unseen
                  from there s
                  join lane c on c.lane = s.lane
                 where pg_visible_in_snapshot(s.txid, ($3).snapshot)
             ) ', _table);
        if not _plain then
            execute _unseen || 'select sum(u.unseen) from unseen u' into _more using topic.id, cursors, until, _low, _late, _from, _to;
        end if;
        _more := messages + coalesce(_more, 0);
        if from_id is null and _more > newest then
            execute _unseen || ', counted as (
                    select u.*, $8 + sum(u.unseen) over (order by u.sequence desc) as so_far from unseen u where u.unseen > 0
                )
                select postbus.first_id(n.sequence) + n.count - n.unseen + (n.so_far - $9)
                  from counted n where n.so_far > $9 order by n.sequence desc limit 1'
               into from_id using topic.id, cursors, until, _low, _late, _from, _to, messages, newest;
        end if;
        messages := _more;
    end loop;
end $$;

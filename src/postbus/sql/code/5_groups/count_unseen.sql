-- How many messages of a topic that a snapshot shows a cursor has before it, in all lanes: counts them, so it takes
-- as long as there are segments.
create or replace function postbus.count_unseen(topic postbus.topic, cursor postbus.log_cursor, until pg_snapshot) returns bigint
language plpgsql as $$
declare
    _seen  postbus.log_place := cursor.seen;
    _leaf  integer;
    _more  bigint;
    _count bigint := 0;
begin
    for _leaf in select l.epoch from postbus.log_leaf l where l.storage_id = topic.storage_id order by l.epoch loop
        execute format(
            'select sum(case when s.position = $4 then s.count - 1 - least($5, s.count - 1)
                             when s.position <= $6 and s.position & 8796093022207 = $8 >> 10 then greatest(s.count - ($8 & 1023), 0)
                             else s.count end)
               from postbus.%I s
              where s.topic_id = $1 and pg_visible_in_snapshot(s.txid, $2) and not pg_visible_in_snapshot(s.txid, $3)
                and ($4 is null or not pg_visible_in_snapshot(s.txid, $9) or s.position >= $4)
                and (s.position <= $6 and (s.published_at < $7 or (s.position & 8796093022207) * 1024 + s.count <= $8)) is not true',
            format('segment_%s_%s', topic.storage_id, _leaf))
          into _more
         using topic.id, until, _seen.snapshot, cursor.done_position, cursor.done_index, cursor.since_bound, cursor.since_at,
               cursor.since_id, (cursor.target).snapshot;
        _count := _count + coalesce(_more, 0);
    end loop;
    return _count;
end $$;

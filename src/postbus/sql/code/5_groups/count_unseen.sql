-- How many messages of a topic that a snapshot shows a cursor has before it, in all lanes: counts them, so it takes
-- as long as there are segments.
create or replace function postbus.count_unseen(topic postbus.topic, cursor postbus.log_cursor, until pg_snapshot) returns bigint
language plpgsql as $$
declare
    _leaf  integer;
    _more  bigint;
    _count bigint := 0;
begin
    for _leaf in select l.epoch from postbus.log_leaf l where l.storage_id = topic.storage_id order by l.epoch loop
        continue when not postbus.lock_leaf(topic.storage_id, _leaf);
        execute format(
            'select sum(postbus.unseen($2, s.position, s.txid, s.count, s.published_at))
               from postbus.%I s
              where s.topic_id = $1 and pg_visible_in_snapshot(s.txid, $3)', postbus.leaf_name(topic.storage_id, _leaf))
          into _more
         using topic.id, cursor, until;
        _count := _count + coalesce(_more, 0);
    end loop;
    return _count;
end $$;

-- How many messages that a snapshot shows a group has before it: counts them, so it takes as long as there are such
-- segments, whatever the group has read. from_id is the id from which on there are `newest` of them; null where there are no more
-- than that.
--
-- Looks above the lowest of the group's cursors, and below it for what was committed late.
create or replace function postbus.count_before(
    subscription_id bigint,
    topic           postbus.topic,
    until           pg_snapshot,
    newest          bigint,
    out messages    bigint,
    out from_id     bigint
)
language plpgsql
set enable_seqscan = off as $$
declare
    _leaf integer;
    _low  bigint;       -- all cursors have seen what lies up to there, but for what is late:
    _late xid8[];       -- of these transactions,
    _from xid8;         -- or from this one on
    _to   xid8;
    _more bigint;
    _id   bigint;
begin
    messages := 0;
    select min(((c.cursor).seen).position), min(pg_snapshot_xmax(((c.cursor).seen).snapshot)), max(((c.cursor).seen).txid),
           array(select x from postbus.current_cursor each, pg_snapshot_xip(((each.cursor).seen).snapshot) as x
                  where each.subscription_id = count_before.subscription_id)
      into _low, _from, _to, _late
      from postbus.current_cursor c where c.subscription_id = count_before.subscription_id;
    for _leaf in select l.epoch from postbus.log_leaf l where l.storage_id = topic.storage_id order by l.epoch desc loop
        continue when not postbus.lock_leaf(topic.storage_id, _leaf);
        execute format(
            'with there as (
                select s.position, s.lane, s.txid, s.count, s.published_at from postbus.%1$I s where s.topic_id = $1 and s.position > $6
                 union all
                (select s.position, s.lane, s.txid, s.count, s.published_at from postbus.%1$I s
                  where s.topic_id = $1 and s.position <= $6 and s.txid = any ($7)
                  union
                 select s.position, s.lane, s.txid, s.count, s.published_at from postbus.%1$I s
                  where s.topic_id = $1 and s.position <= $6 and s.txid >= $8 and s.txid <= $9)
             ), unseen as (
                select s.position, s.count, postbus.unseen(c.cursor, s.position, s.txid, s.count, s.published_at) as unseen
                  from there s
                  join postbus.current_cursor c on c.subscription_id = $2 and c.lane = s.lane
                 where pg_visible_in_snapshot(s.txid, $3)
             ), counted as (
                select u.*, $4 + sum(u.unseen) over (order by u.position desc) as so_far from unseen u where u.unseen > 0
             )
             select max(c.so_far), (select postbus.first_id(n.position) + n.count - n.unseen + (n.so_far - $5)
                                      from counted n where n.so_far > $5 order by n.position desc limit 1)
               from counted c', postbus.leaf_name(topic.storage_id, _leaf))
          into _more, _id
         using topic.id, subscription_id, until, messages, newest, _low, _late, _from, _to;
        messages := coalesce(_more, messages);
        from_id := coalesce(from_id, _id);
    end loop;
end $$;

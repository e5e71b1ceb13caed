-- How many messages that a snapshot shows a group has before it: counts them, so it takes as long as there are
-- segments. from_id is the id from which on there are `newest` of them; null where there are no more than that.
create or replace function postbus.count_before(
    subscription_id bigint,
    topic           postbus.topic,
    until           pg_snapshot,
    newest          bigint,
    out messages    bigint,
    out from_id     bigint
)
language plpgsql as $$
declare
    _leaf integer;
    _more bigint;
    _id   bigint;
begin
    messages := 0;
    for _leaf in select l.epoch from postbus.log_leaf l where l.storage_id = topic.storage_id order by l.epoch desc loop
        continue when not postbus.lock_leaf(topic.storage_id, _leaf);
        execute format(
            'with unseen as (
                select s.position, s.count, postbus.unseen(c.cursor, s.position, s.txid, s.count, s.published_at) as unseen
                  from postbus.%I s
                  join postbus.current_cursor c on c.subscription_id = $2 and c.lane = s.lane
                 where s.topic_id = $1 and pg_visible_in_snapshot(s.txid, $3)
             ), counted as (
                select u.*, $4 + sum(u.unseen) over (order by u.position desc) as so_far from unseen u where u.unseen > 0
             )
             select max(c.so_far), (select postbus.first_id(n.position) + n.count - n.unseen + (n.so_far - $5)
                                      from counted n where n.so_far > $5 order by n.position desc limit 1)
               from counted c', postbus.leaf_name(topic.storage_id, _leaf))
          into _more, _id
         using topic.id, subscription_id, until, messages, newest;
        messages := coalesce(_more, messages);
        from_id := coalesce(from_id, _id);
    end loop;
end $$;

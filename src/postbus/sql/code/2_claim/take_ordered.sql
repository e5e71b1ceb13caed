-- Takes of the messages of an ordered topic that were found those that are the first of their key.
-- The others are parked behind their key and come back when it is their turn: see pass_keys.
--
-- busy_key has a row for each key with a message in hand, be it leased or waiting for its next
-- attempt; only its head_id may be taken. Who takes or passes a key holds the lock of that row, so
-- a key is neither taken twice nor left alone with parked messages.
--
-- Messages published before the topic was ordered go as they come.
--
-- Writes: queued, busy_key.  Locks: busy_key rows in the order of their keys.
create or replace function postbus.take_ordered(topic_id bigint, tids tid[]) returns postbus.queue_message[]
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan as $$
declare
    _keys   text[] := array(select distinct q.key from postbus.queued q where q.ctid = any (tids) and q.ordered order by q.key);
    _held   integer := 0;
    _taken  postbus.queue_message[];
begin
    while _held < cardinality(_keys) loop       -- again, if a key was passed for the last time in between
        insert into postbus.busy_key (topic_id, key)
        select take_ordered.topic_id, wanted.key from unnest(_keys) as wanted (key)
        on conflict on constraint busy_key_pkey do nothing;
        perform from postbus.busy_key b
          where b.topic_id = take_ordered.topic_id and b.key = any (_keys)
          order by b.key for update;
        get diagnostics _held = row_count;
    end loop;

    -- The first message of a key that nobody had need not be among those found.
    update postbus.busy_key b
       set head_id = (select q.id from postbus.queued q
                       where q.topic_id = b.topic_id and q.key = b.key and q.ordered
                       order by q.topic_id, q.key, q.id limit 1)
     where b.topic_id = take_ordered.topic_id and b.key = any (_keys) and b.head_id is null;

    _taken := postbus.take_queued(array(
        select q.ctid from postbus.queued q
          left join postbus.busy_key b on b.topic_id = q.topic_id and b.key = q.key
         where q.ctid = any (tids) and (b.head_id = q.id or not q.ordered)));
    update postbus.queued q set parked = true where q.ctid = any (tids);
    return _taken;
end $$;
